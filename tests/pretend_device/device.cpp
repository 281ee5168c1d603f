// A device for torch's dispatcher that computes on the CPU. See __init__.py, which replaces KIND by
// CUDA or MPS.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <atomic>
#include <set>
#include <unistd.h>

namespace {
using at::Tensor;
constexpr auto TYPE = c10::DeviceType::KIND;
constexpr auto KEY = c10::DispatchKey::KIND;
constexpr int N_DEVICES = IS_CUDA ? 2 : 1;
enum What { KERNEL = 1, VIEW = 2, SYNC = 4, UP = 8, DOWN = 16 };
using Hook = void (*)(const char*, int, int64_t);
Hook hook = nullptr;
int mask = 0;
std::atomic<int64_t> now{0}, peak{0}, limit{-1};
thread_local c10::DeviceIndex current = 0;
pid_t owner = 0;

void note(const std::string& name, What what, int64_t bytes) {
  if (hook && (mask & what)) hook(name.c_str(), what, bytes);
}

void first_use() {
  if (!owner) owner = getpid();
  TORCH_CHECK(owner == getpid(), "Cannot re-initialize CUDA in forked subprocess. To use CUDA "
              "with multiprocessing, you must use the 'spawn' start method");
}

void grow(int64_t bytes) {
  first_use();
  const int64_t total = now += bytes;
  if (limit >= 0 && total > limit) {
    now -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes,
                     " bytes. (pretended: ", total - bytes, " of ", limit.load(), " in use)");
  }
  int64_t seen = peak;
  while (seen < total && !peak.compare_exchange_weak(seen, total)) {}
}

struct Held {  // CPU memory that the device owns
  c10::Storage storage; int64_t bytes;
  Held(c10::Storage s, int64_t n) : storage(std::move(s)), bytes(n) { grow(n); }
  ~Held() { now -= bytes; }
};

struct PretendAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override;
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
} allocator;

c10::DataPtr device_memory(c10::Storage storage, c10::DeviceIndex index) {
  const auto n = storage.nbytes();
  void* data = storage.mutable_data();
  auto* held = new Held(std::move(storage), n);
  return {data, held, [](void* h) { delete static_cast<Held*>(h); }, c10::Device(TYPE, index)};
}

c10::Storage cpu_storage(size_t n) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), n,
                                                c10::GetCPUAllocator(), true));
}

c10::DataPtr PretendAllocator::allocate(size_t n) {
  auto storage = cpu_storage(n);
  if (n) memset(storage.mutable_data(), 0xFF, n);  // NaN, so that nobody takes it for zeros
  return device_memory(storage, current);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device at(c10::DeviceIndex i) { return {TYPE, i < 0 ? current : i}; }
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device d) const override { auto old = at(-1); setDevice(d); return old; }
  c10::Device getDevice() const override { return at(-1); }
  void setDevice(c10::Device d) const override {
    TORCH_CHECK(d.index() < N_DEVICES, "CUDA error: invalid device ordinal");
    if (d.index() >= 0) current = d.index();
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override { if (d.index() >= 0) current = d.index(); }
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, at(d.index())); }
  c10::Stream getDefaultStream(c10::Device d) const override { return getStream(d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return getStream(d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return N_DEVICES; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override { note("synchronize", SYNC, 0); }
};
c10::impl::DeviceGuardImplRegistrar registrar(TYPE, new Guard());

struct Generator final : c10::GeneratorImpl {  // of the device, on an engine of its own
  at::Generator inner;
  explicit Generator(c10::DeviceIndex i)
      : GeneratorImpl(c10::Device(TYPE, i < 0 ? 0 : i), c10::DispatchKeySet(KEY)),
        inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t s) override { inner.set_current_seed(s ^ 0x5bd1e995); shown = s; }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return shown; }
  uint64_t seed() override { auto s = c10::detail::getNonDeterministicRandom(); set_current_seed(s); return s; }
  void set_state(const c10::TensorImpl& s) override { inner.unsafeGetGeneratorImpl()->set_state(s); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { auto* g = new Generator(device_.index()); g->inner = inner.clone(); return g; }
  uint64_t shown = c10::default_rng_seed_val;
};
const at::Generator& device_generator(int i) {
  static const at::Generator all[2] = {at::make_generator<Generator>(0), at::make_generator<Generator>(N_DEVICES - 1)};
  return all[i < 0 ? current : i];
}
at::Generator inner_of(const at::Generator& g) {
  TORCH_CHECK(g.device().type() == TYPE, "Expected a '", c10::DeviceTypeName(TYPE, true),
              "' device type for generator but found '", c10::DeviceTypeName(g.device().type(), true), "'");
  return static_cast<Generator*>(g.unsafeGetGeneratorImpl())->inner;
}

bool on_device(const Tensor& t) { return t.defined() && t.device().type() == TYPE; }

void check_dtype(c10::ScalarType type) {
  TORCH_CHECK_TYPE(TYPE != c10::DeviceType::MPS || type != at::kDouble,
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead.");
}

Tensor tensor_on(c10::Storage storage, const Tensor& like, c10::DispatchKey key) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return t;
}

struct Call {  // one operator on the device: its tensors as the CPU sees them, and back
  std::vector<std::pair<Tensor, Tensor>> tensors;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages;

  Tensor down(const Tensor& t) {
    if (!on_device(t)) return t;
    for (auto& [device, host] : tensors) if (device.is_same(t)) return host;
    c10::Storage host;
    for (auto& [mine, its] : storages) if (mine.is_alias_of(t.storage())) host = its;
    if (!host) {
      auto* keep = new c10::Storage(t.storage());
      void* data = keep->mutable_data();
      host = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), t.storage().nbytes(),
          c10::DataPtr(data, keep, [](void* s) { delete static_cast<c10::Storage*>(s); }, at::kCPU),
          c10::GetCPUAllocator(), true));
      storages.emplace_back(t.storage(), host);
    }
    return tensors.emplace_back(t, tensor_on(host, t, c10::DispatchKey::CPU)).second;
  }

  Tensor up(const Tensor& t, c10::Device where) {
    if (!t.defined() || on_device(t)) return t;
    for (auto& [device, host] : tensors) if (host.is_same(t)) return device;
    check_dtype(t.scalar_type());
    for (auto& [mine, its] : storages) if (its.is_alias_of(t.storage())) return tensor_on(mine, t, KEY);
    c10::Storage mine(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), t.storage().nbytes(),
                      device_memory(t.storage(), where.index()), &allocator, true));
    storages.emplace_back(mine, t.storage());
    return tensor_on(mine, t, KEY);
  }

  void take_back_resized() {
    for (auto& [device, host] : tensors) {
      auto* mine = device.storage().unsafeGetStorageImpl();
      if (host.storage().data() != mine->data() || host.storage().nbytes() != mine->nbytes()) {
        mine->set_data_ptr_noswap(device_memory(host.storage(), device.device().index()));
        mine->set_nbytes(host.storage().nbytes());
      }
      if (host.sizes() != device.sizes() || host.strides() != device.strides())
        device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }
};

const std::set<std::string> SYNCS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim",
  "unique_consecutive", "equal", "bincount", "repeat_interleave", "_linalg_eigh", "linalg_eigh", "_linalg_svd", "histc"};
const std::set<std::string> INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"};
const std::set<std::string> SCALARS = {"masked_fill", "masked_fill_", "fill_", "fill", "where", "clamp", "copy_", "scatter", "lerp"};
const std::set<std::string> PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "addmv_", "addmm_", "baddbmm_"};

void run(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& arguments = schema.arguments();
  const auto n = arguments.size(), begin = stack->size() - n;
  auto name = schema.name().substr(schema.name().find("::") + 2);
  const bool copy = name == "copy_" || name == "_copy_from", index = INDEXING.count(name);
  const bool scalars = op.hasTag(at::Tag::pointwise) || SCALARS.count(name);
  std::optional<c10::Device> where;
  std::vector<std::pair<std::string, Tensor>> others;
  bool sync = SYNCS.count(name);
  auto see = [&](const std::string& argument, const Tensor& t) {
    if (!t.defined()) return;
    if (!on_device(t)) { others.emplace_back(argument, t); return; }
    if (!where) where = t.device();
    TORCH_CHECK(copy || *where == t.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
                *where, " and ", t.device(), "! (when checking argument for argument ", argument, " in method wrapper_CUDA_", name, ")");
    check_dtype(t.scalar_type());
    if (index && argument == "indices" && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte)) sync = true;
    TORCH_CHECK(!PRODUCTS.count(name) || at::isFloatingType(t.scalar_type()) || at::isComplexType(t.scalar_type()),
                "\"", name, "_cuda\" not implemented for '", t.scalar_type(), "'");
  };
  for (size_t i = 0; i < n; i++) {
    const auto& v = (*stack)[begin + i];
    const auto& argument = arguments[i].name();
    if (v.isTensor()) see(argument, v.toTensor());
    else if (v.isTensorList()) for (const auto& t : v.toTensorVector()) see(argument, t);
    else if (v.isOptionalTensorList()) { for (const auto& t : v.toOptionalTensorVector()) if (t) see(argument, *t); }
    else if (v.isDevice() && v.toDevice().type() == TYPE && !where) where = Guard::at(v.toDevice().index());
  }
  if (!where) where = Guard::at(-1);
  for (auto& [argument, t] : others) {
    const bool fine = copy || (scalars && t.dim() == 0) || (index && argument == "indices") ||
                      (index && argument == "values" && t.dim() == 0);
    TORCH_CHECK(fine, "Expected all tensors to be on the same device, but found at least two devices, ", t.device(), " and ",
                *where, "! (when checking argument for argument ", argument, " in method wrapper_CUDA_", name, ")");
    if (!copy && t.dim()) note(name, UP, t.nbytes());
  }
  Call call;
  for (size_t i = 0; i < n; i++) {
    auto& v = (*stack)[begin + i];
    if (v.isTensor()) v = call.down(v.toTensor());
    else if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& t : v.toTensorVector()) list.push_back(call.down(t));
      v = list;
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& t : v.toOptionalTensorVector()) list.push_back(t ? std::optional<Tensor>(call.down(*t)) : t);
      v = list;
    } else if (v.isDevice() && v.toDevice().type() == TYPE) v = c10::Device(at::kCPU);
    else if (v.isGenerator()) v = inner_of(v.toGenerator());
    else if (v.isNone() && arguments[i].name() == "generator") v = inner_of(device_generator(where->index()));
  }
  int64_t bytes = 0;
  if (copy) {
    auto to = (*stack)[begin].toTensor(), from = (*stack)[begin + 1].toTensor();
    bytes = from.nbytes();
    bool to_device = false, from_device = false;
    for (auto& [device, host] : call.tensors) { to_device |= host.is_same(to); from_device |= host.is_same(from); }
    note(name, to_device && from_device ? KERNEL : to_device ? UP : DOWN, bytes);
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    c10::impl::ExcludeDispatchKeyGuard none(c10::autograd_dispatch_keyset);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  if (schema.is_mutable()) call.take_back_resized();
  const auto known = call.storages.size();
  bool fresh = schema.is_mutable();
  const auto returns = schema.returns().size();
  for (size_t i = stack->size() - returns; i < stack->size(); i++) {
    auto& v = (*stack)[i];
    if (v.isTensor()) v = call.up(v.toTensor(), *where);
    else if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const auto& t : v.toTensorVector()) list.push_back(call.up(t, *where));
      v = list;
    }
  }
  fresh |= call.storages.size() > known;
  if (!copy) note(name, sync ? SYNC : fresh ? KERNEL : VIEW, bytes);
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  check_dtype(c10::dtype_or_default(dtype));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(KEY), c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  check_dtype(c10::dtype_or_default(dtype));
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(KEY), c10::dtype_or_default(dtype));
}
Tensor& set_storage(Tensor& t, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  t.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return t;
}
Tensor& set_tensor(Tensor& t, const Tensor& source) {
  return set_storage(t, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
Tensor& set_whole(Tensor& t, at::Storage source) {
  const auto n = static_cast<int64_t>(source.nbytes() / t.itemsize());
  return set_storage(t, std::move(source), 0, {n}, {1});
}
Tensor& set_empty(Tensor& t) {
  return set_tensor(t, at::empty({0}, t.options()));
}
std::tuple<Tensor, Tensor> dropout(const Tensor& x, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  auto mask = at::empty_like(x).bernoulli_(1 - p).to(at::kBool);  // of the device's own generator
  return {x * mask * (p < 1 ? 1 / (1 - p) : 0.0), mask};
}

struct Hooks final : at::KINDHooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasKIND() const override { return true; }
  void init() const override { first_use(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return owner != 0; }
  c10::DeviceIndex deviceCount() const override { return N_DEVICES; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex i) const override { current = i; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex i) const override { return std::exchange(current, i); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex i) const override { return std::exchange(current, i); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override { return device_generator(i); }
  at::Generator getNewGenerator(c10::DeviceIndex i) const override { return at::make_generator<Generator>(i); }
#if IS_CUDA
  int getNumGPUs() const override { return N_DEVICES; }
  c10::DeviceIndex current_device() const override { return current; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &allocator; }
#endif
};
}  // namespace


TORCH_LIBRARY_IMPL(_, KIND, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

TORCH_LIBRARY_IMPL(aten, KIND, m) {
  c10::SetAllocator(TYPE, &allocator, 100);
  // torch has made its hooks by now, objects without data: ours take their place.
  new (const_cast<at::KINDHooksInterface*>(&at::detail::getKINDHooks())) Hooks();
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_empty);
  m.impl("native_dropout", dropout);
  // Composite of others, but one kernel on the device, or with branches of its own for it.
  for (const char* name : {"copy_", "convolution", "convolution_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames())
    if (op.name.rfind("aten::_foreach_", 0) == 0) {
      auto name = op.name.substr(6) + (op.overload_name.empty() ? "" : "." + op.overload_name);
      m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
    }
}

TORCH_LIBRARY_FRAGMENT(pretend_LOWER, m) {
  m.def("seed(int seed, int device) -> ()", [](int64_t s, int64_t i) {
    auto g = device_generator(i); std::lock_guard<std::mutex> l(g.mutex()); g.set_current_seed(s); });
  m.def("get_state(int device) -> Tensor", [](int64_t i) { return device_generator(i).get_state(); });
  m.def("set_state(Tensor state, int device) -> ()", [](const Tensor& s, int64_t i) { auto g = device_generator(i); g.set_state(s); });
}

extern "C" {
void pretend_hook(Hook f, int m) { mask = m; hook = f; }
int64_t pretend_memory(int what, int64_t value) {
  if (what == 0) return now; if (what == 1) return peak; if (what == 2) { peak = now.load(); return 0; }
  if (what == 4) return limit;
  return limit.exchange(value);
}
int pretend_device(int i) { if (i >= 0) current = i; return current; }
}
