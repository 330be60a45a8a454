#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs GoogleTest by apt where the C++ compiler does not find it.
set -euo pipefail

compiler=${CXX:-c++}
if ! command -v "$compiler" >/dev/null; then
  echo "No C++ compiler '$compiler'. Install one (Debian, Ubuntu: apt-get install g++) or set CXX." >&2
  exit 1
fi
if echo '#include <gtest/gtest.h>' | "$compiler" -x c++ -E - >/dev/null 2>&1; then
  exit 0
fi

hint="GoogleTest is missing. Install it (Debian, Ubuntu: apt-get install libgtest-dev) and run again."
if ! command -v apt-get >/dev/null; then
  echo "$hint" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "$hint" >&2; exit 1; }
  as_root=(sudo)
fi
echo "== Installing libgtest-dev (the C++ tests need GoogleTest)"
"${as_root[@]}" apt-get update || true # an old list may do
"${as_root[@]}" apt-get install -y --no-install-recommends libgtest-dev || { echo "$hint" >&2; exit 1; }
