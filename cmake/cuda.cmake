# The CUDA kernels: nvcc compiles each src/cuda/kernels/*.cu to a fat binary, and an assembler directive puts it into the
# library. CMake's own CUDA language is not used: it would link the CUDA run time and ask every builder for a toolkit.
#
#   <name>.cu        machine code for Hopper (sm_90a), and PTX that the driver translates for every other GPU since Turing
#   <name>_sm90.cu   machine code for Hopper alone
#
# Without nvcc the host code is the same and its table of kernels is empty. Sets cuda_image_sources.
set(MLA_CUDA auto CACHE STRING "CUDA kernels: on, off, or auto (when there is an nvcc that works)")
set_property(CACHE MLA_CUDA PROPERTY STRINGS auto on off)
string(TOLOWER "${MLA_CUDA}" mla_cuda)

set(cuda_missing "")
set(cuda_version 0)
if(mla_cuda STREQUAL "off" OR (mla_cuda MATCHES "^(0|no|false)$"))
    set(cuda_missing "it was configured with MLA_CUDA=off")
else()
    find_program(MLA_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin
        DOC "The CUDA compiler")
    if(NOT MLA_NVCC)
        set(cuda_missing "there was no nvcc when it was built")
    else()
        # Does it work? It needs a host compiler that it knows.
        set(trial ${PROJECT_BINARY_DIR}/cuda)
        file(WRITE ${trial}/trial.cu "extern \"C\" __global__ void trial(float *x) { x[threadIdx.x] += 1; }\n")
        execute_process(COMMAND ${MLA_NVCC} -fatbin -gencode=arch=compute_90a,code=sm_90a ${trial}/trial.cu
            -o ${trial}/trial.fatbin RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
        execute_process(COMMAND ${MLA_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
        if(failed)
            set(cuda_missing "the nvcc at hand did not work when it was built")
            message(STATUS "${MLA_NVCC} fails:\n${said}")
        elseif(nvcc_version MATCHES "release ([0-9]+)\\.([0-9]+)")
            math(EXPR cuda_version "${CMAKE_MATCH_1} * 1000 + ${CMAKE_MATCH_2} * 10")
        endif()
    endif()
endif()
if(cuda_missing AND mla_cuda MATCHES "^(on|1|yes|true)$")
    message(FATAL_ERROR "MLA_CUDA=on, but ${cuda_missing}")
endif()

set(image_table "")
set(image_assembly "")
set(image_files "")
if(NOT cuda_missing)
    file(GLOB cuda_kernels CONFIGURE_DEPENDS src/cuda/kernels/*.cu)
    set(nvcc_flags -O3 -std=c++17 -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src ${MLA_NVCC_FLAGS})
    if(CMAKE_COMPILE_WARNING_AS_ERROR)
        list(APPEND nvcc_flags -Werror all-warnings)
    endif()
    foreach(kernel ${cuda_kernels})
        cmake_path(GET kernel STEM name)
        set(image ${PROJECT_BINARY_DIR}/cuda/${name}.fatbin)
        set(targets -gencode=arch=compute_90a,code=sm_90a)
        if(NOT name MATCHES "_sm90$")
            list(APPEND targets -gencode=arch=compute_75,code=compute_75)
        endif()
        add_custom_command(OUTPUT ${image}
            COMMAND ${MLA_NVCC} -fatbin ${targets} ${nvcc_flags} -MD -MF ${image}.d -MT ${image} ${kernel} -o ${image}
            DEPENDS ${kernel} DEPFILE ${image}.d COMMENT "nvcc ${name}.cu" VERBATIM)
        list(APPEND image_files ${image})
        string(APPEND image_assembly
            "__asm__(\".section .rodata\\n.balign 64\\nmla_cuda_image_${name}:\\n.incbin \\\"${image}\\\"\\n.previous\");\n"
            "extern const char mla_cuda_image_${name}[] __attribute__((visibility(\"hidden\")));\n")
        string(APPEND image_table "    {\"${name}\", mla_cuda_image_${name}},\n")
    endforeach()
    message(STATUS "CUDA kernels: compiled by ${MLA_NVCC}")
else()
    message(NOTICE "-- CUDA kernels: none, because ${cuda_missing}; the library runs on CPUs alone")
endif()

set(cuda_image_sources ${PROJECT_BINARY_DIR}/cuda/cuda_images.c)
configure_file(cmake/cuda_images.c.in ${cuda_image_sources} @ONLY)
set_source_files_properties(${cuda_image_sources} PROPERTIES OBJECT_DEPENDS "${image_files}")
