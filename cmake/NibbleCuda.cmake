# Device code. Included with NIBBLE_CUDA only; needs nvcc, and no GPU to compile.
if(NOT DEFINED NIBBLE_CUDA_ARCHITECTURES)
  set(NIBBLE_CUDA_ARCHITECTURES 90a CACHE STRING "List of sm numbers, for example 90a;100a;120a")
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(NIBBLE_NVCC nvcc PATHS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT NIBBLE_NVCC)
    message(FATAL_ERROR "NIBBLE_CUDA is ON and there is no nvcc. Install the CUDA toolkit, set CUDACXX to its nvcc, "
      "or configure without NIBBLE_CUDA.")
  endif()
  set(CMAKE_CUDA_COMPILER ${NIBBLE_NVCC})
endif()
# The architectures are given to nvcc below: this CMake knows no "a" variants.
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
# The standard is written out: CMake 3.25 does not know that this nvcc takes C++20 (CUDA sources follow
# CMAKE_CXX_STANDARD, and configuring would fail), and without it nvcc compiles C++17.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()

set(NIBBLE_CUDA_FLAGS --expt-relaxed-constexpr -Wno-deprecated-gpu-targets -Xcompiler=-Wall)
# Numbers as on the host: products are not fused into sums unless the code says so, subnormals stay,
# divisions and roots are rounded correctly.
list(APPEND NIBBLE_CUDA_FLAGS --fmad=false --ftz=false --prec-div=true --prec-sqrt=true -Xcompiler=-ffp-contract=off)
foreach(sm ${NIBBLE_CUDA_ARCHITECTURES})
  list(APPEND NIBBLE_CUDA_FLAGS "SHELL:-gencode arch=compute_${sm},code=sm_${sm}")
endforeach()
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:${NIBBLE_CUDA_FLAGS}>")
# fmt 9 turns half of its constexpr functions off under nvcc, and the other half then fails to compile as C++20.
add_compile_definitions($<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)

# All files x_cuda.cu and x_cuda.cpp, and nothing else: what a machine without a GPU compiles to see that they do.
add_custom_target(device_code)

# Host code sees the cuda backend through this; libraries come from the toolkit.
add_compile_definitions(NIBBLE_WITH_CUDA)
find_package(CUDAToolkit REQUIRED)
set(NIBBLE_CUDA_RUNTIME CUDA::cudart)
set(NIBBLE_CUDA_LIBRARIES CUDA::cublasLt)
include(${CMAKE_CURRENT_LIST_DIR}/CudnnFrontend.cmake)
