// A device "neuron" (torch's PrivateUse1) whose memory is the host's.
// Every operator runs torch's CPU kernel on an alias of the same storage: no bytes are copied.
#include "twin.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

namespace twin {

constexpr auto NEURON = c10::DeviceType::PrivateUse1;
using Key = c10::DispatchKey;

// ------------------------------------------------------------------------------------------------ rules
std::set<std::string> rules;
bool in_force(const std::string& rule) { return rules.count(rule) > 0; }
void refuse(const std::string& rule, const std::string& text) { TORCH_CHECK(false, text, " [rule ", rule, "]"); }

int own_index = 0;     // this process has one device: neuron:LOCAL_RANK
bool touched = false;  // whether anything was put on it

c10::Device own_device() { return c10::Device(NEURON, static_cast<c10::DeviceIndex>(own_index)); }

void check_device(std::optional<c10::Device> device) {
  if (device && device->has_index() && device->index() != own_index && in_force("index"))
    refuse("index", "Invalid device id: this process has neuron:" + std::to_string(own_index) + " alone, not " + device->str());
}

void check_dtype(c10::ScalarType dtype) {
  if ((dtype == at::kDouble || dtype == at::kComplexDouble) && in_force("float64"))
    refuse("float64", "the device computes float64 as float32, without a word");
}

void check_values(const at::Tensor& host, const std::string& operation) {
  if (host.scalar_type() != at::kLong || host.numel() == 0 || !in_force("int64")) return;
  auto [least, most] = at::aminmax(host);
  if (least.item<int64_t>() < INT32_MIN || most.item<int64_t>() > INT32_MAX)
    refuse("int64", operation + " has values beyond 32 bits: the device computes int64 as int32, without a word");
}

// ------------------------------------------------------------------------------------------------ counters
std::atomic<int64_t> allocated{0}, peak{0}, synchronized{0};
std::mutex counting;
std::map<std::string, int64_t> executed;  // operator -> calls

void grow(int64_t bytes) {
  int64_t now = allocated.fetch_add(bytes) + bytes, before = peak.load();
  while (now > before && !peak.compare_exchange_weak(before, now)) {}
}

void count(const std::string& name) {
  std::lock_guard<std::mutex> lock(counting);
  executed[name]++;
}

// ------------------------------------------------------------------------------------------------ memory
struct Block {
  void* data;
  size_t bytes;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  std::free(block->data);
  allocated -= block->bytes;
  delete block;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    touched = true;
    if (bytes == 0) return {nullptr, own_device()};
    void* data = nullptr;
    TORCH_CHECK(posix_memalign(&data, 64, bytes) == 0, "Failed to allocate ", bytes, " bytes on neuron");
    grow(bytes);
    return {data, new Block{data, bytes}, free_block, own_device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(NEURON, &allocator);

// Keeps the storage of the other device alive behind an alias of it. counted: bytes that are the device's from now on.
struct Owner {
  c10::Storage storage;
  size_t counted;
};

void free_owner(void* context) {
  auto* owner = static_cast<Owner*>(context);
  allocated -= owner->counted;
  delete owner;
}

c10::Storage alias(const c10::Storage& storage, c10::Device device, size_t counted) {
  grow(counted);
  c10::DataPtr data(const_cast<void*>(storage.data()), new Owner{storage, counted}, free_owner, device);
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data),
                      device.is_cpu() ? nullptr : &allocator, !device.is_cpu());
}

at::Tensor like(const at::Tensor& tensor, c10::Storage storage, Key key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return made;
}

bool is_neuron(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == NEURON; }

at::Tensor to_host(const at::Tensor& tensor) {
  return like(tensor, alias(tensor.storage(), c10::Device(at::kCPU), 0), Key::CPU);
}

at::Tensor to_device(const at::Tensor& tensor) {
  check_dtype(tensor.scalar_type());
  touched = true;
  return like(tensor, alias(tensor.storage(), own_device(), tensor.storage().nbytes()), Key::PrivateUse1);
}

at::Tensor on_host(const at::Tensor& tensor) { return is_neuron(tensor) ? to_host(tensor) : tensor; }

// ------------------------------------------------------------------------------------------------ random numbers
struct Generator final : c10::GeneratorImpl {  // the CPU's, under the device's name
  at::Generator inner;
  Generator(at::Generator inner_, c10::DeviceIndex index)
      : c10::GeneratorImpl(c10::Device(NEURON, index), c10::DispatchKeySet(Key::PrivateUse1)), inner(std::move(inner_)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(inner.clone(), device().index()); }
};

at::Generator new_generator() { return at::make_generator<Generator>(at::detail::createCPUGenerator(), own_index); }

const at::Generator& default_generator() {
  static at::Generator one = new_generator();
  return one;
}

at::Generator host_generator(const at::Generator& generator) {
  auto* mine = dynamic_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  return mine ? mine->inner : generator;
}

// ------------------------------------------------------------------------------------------------ guard and hooks
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return NEURON; }
  c10::Device exchangeDevice(c10::Device device) const override { setDevice(device); return own_device(); }
  c10::Device getDevice() const override { return own_device(); }
  void setDevice(c10::Device device) const override { check_device(device); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(own_index + 1); }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override { *event = reinterpret_cast<void*>(1); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override { synchronized++; }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(own_index + 1); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(own_index); }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    if (in_force("generator")) refuse("generator", "torch.Generator(device=\"neuron\") is not available");
    return new_generator();
  }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { TORCH_CHECK(false, "the twin has no pinned memory"); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    auto data = allocator.allocate(bytes);
    if (impl->nbytes()) std::memcpy(data.get(), impl->data(), std::min(bytes, impl->nbytes()));
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(bytes);
  }
};

// ------------------------------------------------------------------------------------------------ operators on memory
at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  check_device(device);
  check_dtype(c10::dtype_or_default(dtype));
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(Key::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  check_device(device);
  check_dtype(c10::dtype_or_default(dtype));
  return at::detail::empty_strided_generic(sizes, strides, &allocator, c10::DispatchKeySet(Key::PrivateUse1), c10::dtype_or_default(dtype));
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  touched = true;
  count("aten::copy_");
  auto host = on_host(self);
  host.copy_(on_host(from), non_blocking);
  if (is_neuron(self)) check_values(host, "copy_");
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  on_host(to).copy_(on_host(self), non_blocking);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.numel() == 0) to.resize_(self.sizes());
  on_host(to).copy_(on_host(self));
  return to;
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  size_t bytes = (impl->numel() + impl->storage_offset()) * impl->itemsize();
  if (bytes > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (strides.data() == nullptr || strides.size() != sizes.size()) {
    impl->set_sizes_contiguous(sizes);
    impl->set_storage_offset(offset);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_source(at::Tensor& self, at::Storage source) {
  int64_t elements = source.nbytes() / self.itemsize();
  return set_storage(self, source, 0, {elements}, {1});
}

at::Tensor& set_empty(at::Tensor& self) {
  return set_storage(self, c10::Storage(c10::Storage::use_byte_size_t(), 0, &allocator, true), 0, {0}, {1});
}

c10::Scalar read(const at::Tensor& self) {
  count("aten::_local_scalar_dense");
  return to_host(self).item();
}

// ------------------------------------------------------------------------------------------------ all other operators
// A tensor of the device and its alias on the host, for the time of one operator.
struct Pair {
  at::Tensor device, host;
};
using Pairs = c10::SmallVector<Pair, 6>;

at::Tensor given(const at::Tensor& tensor, const std::string& name, Pairs& pairs) {
  if (!tensor.defined()) return tensor;
  if (!is_neuron(tensor)) {
    TORCH_CHECK(tensor.dim() == 0 || !tensor.device().is_cpu(),
                "Expected all tensors to be on the same device, but ", name, " was given one on cpu beside neuron");
    return tensor;
  }
  for (auto& one : pairs) if (one.device.is_same(tensor)) return one.host;
  pairs.push_back({tensor, to_host(tensor)});
  return pairs.back().host;
}

c10::IValue given(const c10::IValue& value, const c10::Argument& argument, const std::string& name, Pairs& pairs) {
  if (value.isTensor()) return given(value.toTensor(), name, pairs);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(given(tensor, name, pairs));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional<at::Tensor>(given(*tensor, name, pairs)) : tensor);
    return list;
  }
  if (value.isDevice()) return c10::Device(at::kCPU);
  if (value.isGenerator()) return host_generator(value.toGenerator());
  if (value.isNone() && argument.name() == "generator") return host_generator(default_generator());
  return value;
}

at::Tensor returned(const at::Tensor& tensor, const std::string& name, const Pairs& pairs) {
  if (!tensor.defined() || !tensor.device().is_cpu()) return tensor;
  check_values(tensor, name);
  for (auto& one : pairs) if (one.host.is_same(tensor)) return one.device;
  for (auto& one : pairs)
    if (tensor.storage().nbytes() && one.host.storage().data() == tensor.storage().data())  // a view
      return like(tensor, one.device.storage(), Key::PrivateUse1);
  return to_device(tensor);
}

c10::IValue returned(const c10::IValue& value, const std::string& name, const Pairs& pairs) {
  if (value.isTensor()) return returned(value.toTensor(), name, pairs);
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(returned(tensor, name, pairs));
  return list;
}

// An out= without elements gets its memory from the kernel, on the host: hand in a fresh one, take its memory over.
void open_empty_outputs(const c10::FunctionSchema& schema, Pairs& pairs, torch::jit::Stack* stack, size_t begin) {
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    auto& value = (*stack)[begin + i];
    if (!schema.arguments()[i].is_out() || !value.isTensor()) continue;
    for (auto& one : pairs) {
      if (!value.toTensor().is_same(one.host) || one.device.numel() || one.device.storage().nbytes()) continue;
      one.host = at::empty({0}, one.device.options().device(at::kCPU));
      value = one.host;
      break;
    }
  }
}

// Sizes that an in-place or out= operator changed.
void take_sizes_over(Pairs& pairs) {
  for (auto& [device, host] : pairs) {
    if (device.sizes() == host.sizes() && device.strides() == host.strides() && device.storage_offset() == host.storage_offset()) continue;
    auto* impl = device.unsafeGetTensorImpl();
    if (host.storage().data() != device.storage().data())
      impl->set_storage_keep_dtype(alias(host.storage(), own_device(), host.storage().nbytes()));
    impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
  }
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const std::string name = schema.name();
  const size_t inputs = schema.arguments().size(), begin = stack->size() - inputs, outputs = schema.returns().size();
  count(name);
  Pairs pairs;
  for (size_t i = 0; i < inputs; i++) (*stack)[begin + i] = given((*stack)[begin + i], schema.arguments()[i], name, pairs);
  open_empty_outputs(schema, pairs, stack, begin);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  take_sizes_over(pairs);
  for (size_t i = stack->size() - outputs; i < stack->size(); i++) (*stack)[i] = returned((*stack)[i], name, pairs);
}

const auto ON_HOST = [] { return torch::CppFunction::makeFromBoxedFunction<&run_on_host>(); };

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(ON_HOST()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_.source_Storage", &set_source);
  m.impl("set_", &set_empty);
  m.impl("_local_scalar_dense", &read);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  // torch has other ones, with other bits, for devices without a kernel of their own
  m.impl("native_layer_norm", ON_HOST());
  m.impl("native_group_norm", ON_HOST());
  m.impl("convolution", ON_HOST());
  m.impl("convolution_backward", ON_HOST());
}

}  // namespace twin

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace twin;
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("set_rules", [](const std::set<std::string>& names) { rules = names; });
  m.def("set_index", [](int index) { own_index = index; });
  m.def("index", [] { return own_index; });
  m.def("touched", [] { return touched; });
  m.def("touch", [] { touched = true; });
  m.def("synchronize", [] { synchronized++; });
  m.def("synchronized", [] { return synchronized.load(); });
  m.def("executed", [] { std::lock_guard<std::mutex> lock(counting); return executed; });
  m.def("allocated", [] { return allocated.load(); });
  m.def("peak", [] { return peak.load(); });
  m.def("reset_peak", [] { peak = allocated.load(); });
  m.def("default_generator", [] { return default_generator(); });
  add_group(m);
}
