# SPDX-License-Identifier: Apache-2.0
# Keep in sync with cmake/build_info.py.in, from which CMake writes the module.
VERSION: str  # of vllm_ir; "" where CMake ran by hand
TORCH: str  # the minor built against, such as "2.13"
TORCH_FULL: str  # such as "2.13.0+cpu"
COMPILER: str
BUILD_TYPE: str
CUDA_TOOLKIT: str  # "" without CUDA kernels
CUDA_ARCHITECTURES: str  # joined by ";"
CUDA_SKIPPED: str  # why there are no CUDA kernels; "" when there are
