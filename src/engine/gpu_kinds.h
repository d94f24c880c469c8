// The GPUs that plans know by name: what their maker's data sheets promise, and what was measured.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dsv32 {

struct GpuKind {
  const char* name;    // capitals without spaces; a device's own name contains it
  uint64_t n_bytes;    // as nvidia-smi reports it
  double memory_rate;  // bytes a second
  double link_rate;    // bytes a second in one direction, over 16 lanes of PCIe
  double tensor_rate;  // FLOP a second: dense products of fp16 with sums in f32
  double clock_rate;   // multiprocessors times the boost clock, Hz
  double prompt_rate;  // measured: tokens a second of a prompt with all 61 layers on it; 0: it was never run
  bool can_team = false;  // several of a host reach each other's memory (NVLink)
};

std::span<const GpuKind> gpu_kinds();
// By its name, in any case, with or without spaces and "RTX" ("4090"). Null: unknown.
const GpuKind* find_gpu(const std::string& name);
// Of a device that calls itself `name` ("NVIDIA GeForce RTX 4090"; empty: not known) and has n_bytes. Without
// a known name, or with too little memory for it: the slowest kind with as much memory, to a tenth; else the
// slowest of all.
const GpuKind& gpu_like(const std::string& name, uint64_t n_bytes);
// Name, memory and rates of each kind, a line each, for people.
std::string gpu_table();

}  // namespace dsv32
