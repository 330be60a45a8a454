# SPDX-License-Identifier: Apache-2.0
# Flags of every target of ours: warnings, and the sanitizers when a test build asks for them.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)  # GCC 12 sees overlap in plain std::string assignments
endif()
if(VLLM_IR_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

if(VLLM_IR_SANITIZE)
  if(VLLM_IR_EXTENSION)
    # Python itself is not sanitized, so such a module would not load into it.
    message(FATAL_ERROR "VLLM_IR_SANITIZE is for the C++ tests, got VLLM_IR_EXTENSION=ON. Add -DVLLM_IR_EXTENSION=OFF.")
  endif()
  add_compile_options(-fsanitize=${VLLM_IR_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${VLLM_IR_SANITIZE})
  if(VLLM_IR_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
