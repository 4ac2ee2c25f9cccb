# The CUDA device, or the file that stands in for it. Callers see one function either way.
include(CheckLanguage)
set(SPILLWAY_HAS_CUDA OFF)
if(NOT SPILLWAY_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(SPILLWAY_HAS_CUDA ON)
  elseif(SPILLWAY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPILLWAY_CUDA=ON, but no nvcc was found; set CMAKE_CUDA_COMPILER")
  endif()
endif()

if(SPILLWAY_HAS_CUDA)
  # One binary for Turing to Hopper, and to Blackwell where this nvcc knows it, which would else
  # compile PTX at its first start; PTX of Hopper's for what comes after. CUDAARCHS is CMake's own
  # variable of the environment for others.
  if(NOT CMAKE_CUDA_ARCHITECTURES AND NOT "$ENV{CUDAARCHS}" STREQUAL "")
    set(CMAKE_CUDA_ARCHITECTURES "$ENV{CUDAARCHS}" CACHE STRING "What the CUDA device is compiled for")
  elseif(NOT CMAKE_CUDA_ARCHITECTURES)
    set(architectures 75-real 80-real 86-real 89-real 90)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
    foreach(newer 100 120)
      if(known MATCHES "compute_${newer}\n")
        list(APPEND architectures ${newer}-real)
      endif()
    endforeach()
    set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING
      "What the CUDA device is compiled for")
  endif()
  enable_language(CUDA)
  set_target_properties(spillway_kernels PROPERTIES
    CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}")
  # Debian's CMake does not know the newest nvcc's dialects.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  # -Wno-deprecated-gpu-targets: Turing stays.
  set(flags --expt-relaxed-constexpr -Wno-deprecated-gpu-targets --Wext-lambda-captures-this
    -Xcompiler=-Wall,-Wextra)
  if(SPILLWAY_WERROR)
    list(APPEND flags --Werror=all-warnings)
  endif()
  if(SPILLWAY_PTXAS_VERBOSE)  # For scripts/kernel_report.py, which else compiles all of them again
    list(APPEND flags -Xptxas=-v)
  endif()
  target_compile_options(spillway_kernels PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${flags}>")
  find_package(CUDAToolkit REQUIRED)
  message(STATUS "CUDA: ${CUDAToolkit_VERSION}, device compiled in")
  file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cc kernels/cuda/*.cu)
  target_sources(spillway_kernels PRIVATE ${cuda_sources})
  target_link_libraries(spillway_kernels PRIVATE CUDA::cudart_static CUDA::cublas CUDA::cublasLt)
else()
  message(STATUS "CUDA: not found or switched off, building for the CPU only")
  target_sources(spillway_kernels PRIVATE kernels/dispatch/no_cuda.cc)
endif()
