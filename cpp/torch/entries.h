// SPDX-License-Identifier: Apache-2.0
// The entries that are known by name: the built-in ones, and those of loaded libraries.
#pragma once

#include <string>
#include <vector>

#include "cpp/dispatch/schema.h"
#include "cpp/torch/entry.h"

namespace vllm_ir {

// Throws Error(kDuplicate) when a name is taken by another function.
void add_entries(const EntryTable& table, const std::string& from);
// Loads a shared library and adds its entries; returns their names. The library stays loaded.
// Throws Error(kValue) when it can't be loaded, has no table, or was built for another torch.
std::vector<std::string> load_entries(const std::string& path);
// Throws UnknownName, or Error(kValue) when the signature isn't the op's.
const Entry* find_entry(const std::string& name, const std::string& where,
                        const std::vector<Param>& params, int tensor_outputs);

}  // namespace vllm_ir
