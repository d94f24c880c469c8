// cuBLASLt's functions, loaded at run time: the program also starts and works without the library.
#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <vector>

namespace dsv32::cuda {

// Each function as <cublasLt.h> declares it; null without the library, which is never unloaded.
class CublasLibrary {
  void* library_ = open();
  static void* open() {
    for (const char* name :
         {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so"})
      if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    return nullptr;
  }
  template <class F>
  F find(const char* name) const {
    return library_ ? reinterpret_cast<F>(dlsym(library_, name)) : nullptr;
  }

 public:
  bool is_there() const { return MatmulAlgoGetHeuristic != nullptr; }
#define DSV32_CUBLAS(name) decltype(&cublasLt##name) name = find<decltype(&cublasLt##name)>("cublasLt" #name)
  DSV32_CUBLAS(Create);
  DSV32_CUBLAS(GetVersion);
  DSV32_CUBLAS(Matmul);
  DSV32_CUBLAS(MatmulAlgoConfigGetAttribute);
  DSV32_CUBLAS(MatmulAlgoGetHeuristic);
  DSV32_CUBLAS(MatmulDescCreate);
  DSV32_CUBLAS(MatmulDescDestroy);
  DSV32_CUBLAS(MatmulDescSetAttribute);
  DSV32_CUBLAS(MatmulPreferenceCreate);
  DSV32_CUBLAS(MatmulPreferenceDestroy);
  DSV32_CUBLAS(MatmulPreferenceSetAttribute);
  DSV32_CUBLAS(MatrixLayoutCreate);
  DSV32_CUBLAS(MatrixLayoutDestroy);
  DSV32_CUBLAS(MatrixLayoutSetAttribute);
#undef DSV32_CUBLAS
};

// Wrapped in a struct of ours, because nvcc breaks off at a vector of the C type.
struct CublasAlgorithm {
  cublasLtMatmulAlgo_t algo;
};

// y [n_tokens, n_rows] = x [n_tokens, n_cols] W^T of one matrix or several: W, x fp16, sums f32, y f32. The
// library's matrices are column-major, so it makes y^T = W x^T.
struct CublasShape {
  int64_t n_rows, n_cols, n_tokens, n_mats;
  int64_t w_stride, x_stride, y_stride;  // values between rows
  int64_t w_mat_stride = 0, x_mat_stride = 0, y_mat_stride = 0;
};

class CublasProduct {
 public:
  CublasProduct(const CublasLibrary& library, const CublasShape& shape) : library_(library) {
    const auto rows = static_cast<uint64_t>(shape.n_rows), cols = static_cast<uint64_t>(shape.n_cols),
               tokens = static_cast<uint64_t>(shape.n_tokens);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    library.MatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    library.MatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    library.MatrixLayoutCreate(&w, CUDA_R_16F, cols, rows, shape.w_stride);
    library.MatrixLayoutCreate(&x, CUDA_R_16F, cols, tokens, shape.x_stride);
    library.MatrixLayoutCreate(&y, CUDA_R_32F, rows, tokens, shape.y_stride);
    if (shape.n_mats == 1) return;
    const auto repeat = [&](cublasLtMatrixLayout_t layout, int64_t stride) {
      const auto n_mats = static_cast<int32_t>(shape.n_mats);
      library.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n_mats, sizeof n_mats);
      library.MatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                       sizeof stride);
    };
    repeat(w, shape.w_mat_stride), repeat(x, shape.x_mat_stride), repeat(y, shape.y_mat_stride);
  }
  ~CublasProduct() {
    for (const cublasLtMatrixLayout_t layout : {w, x, y}) library_.MatrixLayoutDestroy(layout);
    library_.MatmulDescDestroy(desc);
  }
  CublasProduct(const CublasProduct&) = delete;
  CublasProduct& operator=(const CublasProduct&) = delete;

  // Enqueues the product; returns false, and enqueues nothing, where the library refuses.
  bool run(cublasLtHandle_t handle, const CublasAlgorithm& algorithm, const void* weights, const void* tokens,
           void* out, cudaStream_t stream) const {
    const float one = 1, zero = 0;
    return library_.Matmul(handle, desc, &one, weights, w, tokens, x, &zero, out, y, out, y, &algorithm.algo,
                           nullptr, 0, stream) == CUBLAS_STATUS_SUCCESS;
  }

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;

 private:
  const CublasLibrary& library_;
};

// The library's algorithms for a product, its favourites first, limited to those that add each sum in one
// piece, need no scratch memory, and read addresses that are multiples of 16 bytes. They suit other numbers
// of tokens too.
inline std::vector<CublasAlgorithm> algorithms_of(const CublasLibrary& library, cublasLtHandle_t handle,
                                                  const CublasProduct& product) {
  cublasLtMatmulPreference_t preference;
  if (library.MatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return {};
  const auto want = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    library.MatmulPreferenceSetAttribute(preference, what, &value, sizeof value);
  };
  want(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{0});
  want(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  for (const auto alignment :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    want(alignment, uint32_t{16});
  cublasLtMatmulHeuristicResult_t found[32];
  int n_found = 0;
  library.MatmulAlgoGetHeuristic(handle, product.desc, product.w, product.x, product.y, product.y, preference,
                                 32, found, &n_found);
  library.MatmulPreferenceDestroy(preference);
  std::vector<CublasAlgorithm> list;
  for (int i = 0; i < n_found; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS && found[i].workspaceSize == 0)
      list.push_back({found[i].algo});
  return list;
}

// A setting of an algorithm; T has as many bytes as the library expects.
template <class T>
int setting_of(const CublasLibrary& library, const CublasAlgorithm& algorithm,
               cublasLtMatmulAlgoConfigAttributes_t which) {
  T value = 0;
  library.MatmulAlgoConfigGetAttribute(&algorithm.algo, which, &value, sizeof value, nullptr);
  return static_cast<int>(value);
}

}  // namespace dsv32::cuda
