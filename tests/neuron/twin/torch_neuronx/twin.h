// What device.cpp and group.cpp share.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

namespace twin {

// A rule of rules.py that is broken here. Python says which rules are in force.
bool in_force(const std::string& rule);
[[noreturn]] void refuse(const std::string& rule, const std::string& text);

// A neuron tensor's memory as a CPU tensor; other tensors as they are.
at::Tensor on_host(const at::Tensor& tensor);

void add_group(py::module& module);

}  // namespace twin
