# The headers of cuDNN and of cudnn-frontend, for ops/attention/attention_cudnn_cuda.cpp alone. Nothing is linked:
# libcudnn.so.9 is opened when a GPU first computes attention, so that one binary runs with the library of the toolkit,
# with pip's nvidia-cudnn (its lib folder in LD_LIBRARY_PATH) and without any, where our own kernels compute.
#
#   NIBBLE_CUDNN = AUTO   use cuDNN if its headers can be found or fetched, else warn and go on without (the default)
#                  ON     the same, but fail
#                  OFF    own kernels only
#   NIBBLE_CUDNN_FRONTEND_INCLUDE_DIR   folder of cudnn_frontend.h (1.x); empty: the pinned wheel from PyPI
#   NIBBLE_CUDNN_INCLUDE_DIR            folder of cudnn.h (9.x); empty: looked for in the toolkit and in Python's packages
set(NIBBLE_CUDNN AUTO CACHE STRING "cuDNN for attention: AUTO, ON or OFF")
set(NIBBLE_CUDNN_FRONTEND_VERSION 1.32.0)
# Wheels differ by Python and by processor only in parts we do not use, so everybody takes this one.
set(NIBBLE_CUDNN_FRONTEND_WHEEL
    nvidia_cudnn_frontend-1.32.0-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl)
set(NIBBLE_CUDNN_FRONTEND_SHA256 c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0)

# Sets `result` to the include folder of the pinned wheel, or to nothing and `why` to the reason.
function(nibble_fetch_cudnn_frontend result why)
  set(${result} "" PARENT_SCOPE)
  set(dir ${CMAKE_BINARY_DIR}/cudnn-frontend-${NIBBLE_CUDNN_FRONTEND_VERSION})
  set(wheel ${dir}/${NIBBLE_CUDNN_FRONTEND_WHEEL})
  set(unpacked ${dir}/${NIBBLE_CUDNN_FRONTEND_SHA256})
  if(NOT EXISTS ${unpacked}/include/cudnn_frontend.h)
    find_program(NIBBLE_PYTHON3 python3)
    if(NOT NIBBLE_PYTHON3)
      set(${why} "there is no python3 to fetch it with" PARENT_SCOPE)
      return()
    endif()
    message(STATUS "Fetching cudnn-frontend ${NIBBLE_CUDNN_FRONTEND_VERSION} (11 MB) from PyPI")
    execute_process(
      COMMAND ${NIBBLE_PYTHON3} -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all:
        --implementation cp --python-version 3.11 --abi cp311 --platform manylinux_2_28_x86_64
        --timeout 20 --retries 1 -d ${dir} nvidia-cudnn-frontend==${NIBBLE_CUDNN_FRONTEND_VERSION}
      RESULT_VARIABLE status ERROR_VARIABLE said OUTPUT_QUIET)
    if(NOT status EQUAL 0 OR NOT EXISTS ${wheel})
      string(STRIP "${said}" said)
      string(REGEX REPLACE "^.*\n" "" said "${said}")
      set(${why} "pip could not download it (offline?): ${said}" PARENT_SCOPE)
      return()
    endif()
    file(SHA256 ${wheel} sum)
    if(NOT sum STREQUAL NIBBLE_CUDNN_FRONTEND_SHA256)
      file(REMOVE ${wheel})
      message(FATAL_ERROR "The wheel of cudnn-frontend that was downloaded is not the pinned one: its SHA-256 is ${sum}, "
        "expected ${NIBBLE_CUDNN_FRONTEND_SHA256}. It was deleted; see who answers for PyPI on this network.")
    endif()
    file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${unpacked} PATTERNS include/*)
    file(REMOVE ${wheel})
  endif()
  set(${result} ${unpacked}/include PARENT_SCOPE)
endfunction()

# Sets `result` to the folder of cudnn.h, or to nothing.
function(nibble_find_cudnn result)
  set(hints ${NIBBLE_CUDNN_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS} $ENV{CUDNN_PATH}/include)
  find_program(NIBBLE_PYTHON3 python3)
  if(NIBBLE_PYTHON3)
    execute_process(
      COMMAND ${NIBBLE_PYTHON3} -c "import nvidia.cudnn as m; print(list(m.__path__)[0] + '/include')"
      OUTPUT_VARIABLE of_pip OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND hints ${of_pip})
  endif()
  find_path(NIBBLE_CUDNN_HEADER_DIR cudnn.h HINTS ${hints})
  set(${result} ${NIBBLE_CUDNN_HEADER_DIR} PARENT_SCOPE)
endfunction()

if(NIBBLE_CUDNN)
  set(missing "")
  nibble_find_cudnn(cudnn_include)
  if(NOT cudnn_include)
    set(missing "cudnn.h was not found: install cuDNN 9 (package cudnn9-cuda-13, or pip install nvidia-cudnn-cu13), or \
give its folder with -DNIBBLE_CUDNN_INCLUDE_DIR=")
  elseif(NIBBLE_CUDNN_FRONTEND_INCLUDE_DIR)
    set(frontend_include ${NIBBLE_CUDNN_FRONTEND_INCLUDE_DIR})
    if(NOT EXISTS ${frontend_include}/cudnn_frontend.h)
      message(FATAL_ERROR "NIBBLE_CUDNN_FRONTEND_INCLUDE_DIR: there is no cudnn_frontend.h in ${frontend_include}")
    endif()
  else()
    nibble_fetch_cudnn_frontend(frontend_include why)
    if(NOT frontend_include)
      set(missing "cudnn-frontend ${NIBBLE_CUDNN_FRONTEND_VERSION} is needed and ${why}. Give a folder that holds \
cudnn_frontend.h with -DNIBBLE_CUDNN_FRONTEND_INCLUDE_DIR=")
    endif()
  endif()
  if(NOT missing)
    # The one file that sees these 25,000 lines; as system headers, so that their warnings are not ours.
    set_source_files_properties(src/ops/attention/attention_cudnn_cuda.cpp PROPERTIES
      COMPILE_DEFINITIONS NIBBLE_WITH_CUDNN
      COMPILE_OPTIONS "-isystem;${frontend_include};-isystem;${cudnn_include}")
    list(APPEND NIBBLE_CUDA_LIBRARIES ${CMAKE_DL_LIBS})
    message(STATUS "Attention through cuDNN: headers in ${cudnn_include} and ${frontend_include}")
  elseif(NIBBLE_CUDNN STREQUAL AUTO)
    message(WARNING "Building WITHOUT cuDNN, attention will be many times slower. ${missing}\n"
      "To silence this, choose own kernels with -DNIBBLE_CUDNN=OFF.")
  else()
    message(FATAL_ERROR "NIBBLE_CUDNN is ON. ${missing}")
  endif()
endif()
