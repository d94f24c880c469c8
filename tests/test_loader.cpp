// The loader: every byte arrives, by whichever way it is read, and what goes wrong is said.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/support/island_backend.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "weights/loader.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(loader)

namespace {

struct Target {
  const GgufTensor* tensor;
  Place place;
  uint8_t* to;
};

// All tensors of the file, in turns on two devices and in host memory.
std::vector<Target> add_all(Loader& loader, const GgufFile& file, Backend& first, Backend& second) {
  std::vector<Target> targets;
  for (const GgufTensor& tensor : file.tensors()) {
    Backend& backend = targets.size() % 2 ? second : first;
    const Place place = targets.size() % 3 ? Place::device : Place::host;
    targets.push_back({&tensor, place, backend.alloc_weights(place, tensor.n_bytes, 0)});
    loader.add(tensor, 0, tensor.n_bytes, backend, place, targets.back().to);
  }
  std::ranges::reverse(targets);
  return targets;
}

bool are_there(const std::vector<Target>& targets) {
  return std::ranges::all_of(targets, [](const Target& target) {
    return std::memcmp(target.to, target.tensor->data, target.tensor->n_bytes) == 0;
  });
}

std::string large_model(const TempDir& dir) {
  TinyModel shape;
  shape.n_layers = 4, shape.n_dense_layers = 1, shape.dim = 512, shape.moe_inter_dim = 512;
  write_tiny_model(dir.file("model.gguf"), shape);
  return dir.file("model.gguf");
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_byte_arrives_by_every_way) {
  const TempDir dir;
  const GgufFile file(large_model(dir));
  for (const Loader::Caching caching :
       {Loader::Caching::automatic, Loader::Caching::kept, Loader::Caching::passed_by}) {
    IslandBackend first, second;
    Loader loader(file);
    const std::vector<Target> targets = add_all(loader, file, first, second);
    BOOST_TEST(!are_there(targets));
    uint64_t n_last = 0, n_all = 0;
    bool rises = true;
    loader.run([&](uint64_t n_done, uint64_t n) { rises &= n_done >= n_last, n_last = n_done, n_all = n; },
               caching);
    BOOST_TEST(are_there(targets));
    BOOST_TEST(rises);
    BOOST_TEST(n_last == n_all);
    uint64_t n_bytes = 0;
    for (const GgufTensor& tensor : file.tensors()) n_bytes += tensor.n_bytes;
    BOOST_TEST(n_all == n_bytes);
  }
}

BOOST_AUTO_TEST_CASE(bytes_in_memory_are_loaded_too) {
  const TempDir dir;
  const MappedFile mapped(large_model(dir));
  const GgufFile file(mapped.bytes(), "in memory");
  IslandBackend first, second;
  Loader loader(file);
  const std::vector<Target> targets = add_all(loader, file, first, second);
  loader.run();
  BOOST_TEST(are_there(targets));
}

// Another file under the name, or fewer bytes than there were.
BOOST_AUTO_TEST_CASE(a_file_that_has_changed_is_refused) {
  const auto is_refused = [](const std::function<void(const std::string& path)>& change,
                             Loader::Caching caching) {
    const TempDir dir;
    const std::string path = large_model(dir);
    const GgufFile file(path);
    IslandBackend first, second;
    Loader loader(file);
    add_all(loader, file, first, second);
    change(path);
    BOOST_CHECK_EXCEPTION(loader.run({}, caching), Error, [](const Error& error) {
      return error.kind() == ErrorKind::model &&
             std::string(error.what()).find("changed") != std::string::npos;
    });
  };
  for (const Loader::Caching caching : {Loader::Caching::kept, Loader::Caching::passed_by}) {
    is_refused(
        [](const std::string& path) {
          std::filesystem::copy_file(path, path + ".new");
          std::filesystem::rename(path + ".new", path);
        },
        caching);
    is_refused(
        [](const std::string& path) {
          std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
        },
        caching);
  }
}

// The readers wait for a device that takes nothing any more; its error ends them.
BOOST_AUTO_TEST_CASE(a_device_that_fails_ends_the_loading) {
  struct Failing : IslandBackend {
    void upload(void*, const void*, size_t) override { fail(ErrorKind::device, "the device is gone"); }
  };
  const TempDir dir;
  const GgufFile file(large_model(dir));
  IslandBackend first;
  Failing second;
  Loader loader(file);
  add_all(loader, file, first, second);
  BOOST_CHECK_EXCEPTION(loader.run(), Error,
                        [](const Error& error) { return error.kind() == ErrorKind::device; });
}

BOOST_AUTO_TEST_SUITE_END()
