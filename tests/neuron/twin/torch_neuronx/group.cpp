// A backend of torch.distributed that hands gloo CPU tensors of the same memory, after Python has looked at the rules.
#include "twin.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace twin {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using Splits = std::vector<int64_t>;
using Done = c10::intrusive_ptr<c10d::Work>;

struct Work final : c10d::Work {  // gloo's, whose results are tensors of the device
  Done inner;
  Tensors outputs;
  uint64_t number;
  Work(Done inner_, Tensors outputs_, uint64_t number_) : inner(std::move(inner_)), outputs(std::move(outputs_)), number(number_) {}
  bool isCompleted() override { return inner->isCompleted(); }
  bool isSuccess() const override { return inner->isSuccess(); }
  std::exception_ptr exception() const override { return inner->exception(); }
  bool wait(std::chrono::milliseconds timeout) override { return inner->wait(timeout); }
  void synchronize() override { inner->synchronize(); }
  Tensors result() override { return outputs; }
  uint64_t getSequencenumber() const override { return number; }
  int sourceRank() const override { return inner->sourceRank(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto made = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    inner->getFuture()->addCallback([made, kept = outputs](c10::ivalue::Future& done) {
      if (done.hasError()) made->setError(done.exception_ptr());
      else made->markCompleted(kept);
    });
    return made;
  }
};

Tensors hosts(const Tensors& tensors) {
  Tensors found;
  for (auto& one : tensors) found.push_back(on_host(one));
  return found;
}

Lists hosts(const Lists& lists) {
  Lists found;
  for (auto& one : lists) found.push_back(hosts(one));
  return found;
}

Tensors flat(const Lists& lists) {
  Tensors found;
  for (auto& one : lists) found.insert(found.end(), one.begin(), one.end());
  return found;
}

Tensors both(Tensors some, const Tensors& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

bool is_even(const Splits& splits) {  // as ProcessGroupNeuron reads a list of splits: absent, or all 1
  for (auto one : splits) if (one != 1) return false;
  return true;
}

struct Backend final : c10d::Backend {
  c10::intrusive_ptr<c10d::Backend> inner;
  py::function check;  // (operation, tensors, whether splits are even): raises what the rules refuse
  uint64_t number = 0;

  Backend(c10::intrusive_ptr<c10d::Backend> inner_, py::function check_)
      : c10d::Backend(inner_->getRank(), inner_->getSize()), inner(std::move(inner_)), check(std::move(check_)) {}
  ~Backend() override {
    py::gil_scoped_acquire gil;
    check = py::function();
  }
  const std::string getBackendName() const override { return "neuron"; }

  void ask(const char* operation, const Tensors& tensors, bool even = true) {
    py::gil_scoped_acquire gil;
    check(operation, tensors, even);
  }
  Done done(Done work, Tensors outputs) { return c10::make_intrusive<Work>(std::move(work), std::move(outputs), ++number); }

  Done broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    ask("broadcast", t);
    auto host = hosts(t);
    return done(inner->broadcast(host, o), t);
  }
  Done allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    ask("all_reduce", t);
    auto host = hosts(t);
    return done(inner->allreduce(host, o), t);
  }
  Done allreduce_coalesced(Tensors& t, const c10d::AllreduceCoalescedOptions& o) override {
    ask("all_reduce", t);
    auto host = hosts(t);
    return done(inner->allreduce_coalesced(host, o), t);
  }
  Done reduce(Tensors& t, const c10d::ReduceOptions& o) override {
    ask("reduce", t);
    auto host = hosts(t);
    return done(inner->reduce(host, o), t);
  }
  Done allgather(Lists& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    ask("all_gather", both(in, flat(out)));
    auto to = hosts(out);
    auto from = hosts(in);
    return done(inner->allgather(to, from, o), flat(out));
  }
  Done _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions& o) override {
    ask("all_gather", {in, out});
    auto to = on_host(out), from = on_host(in);
    return done(inner->_allgather_base(to, from, o), {out});
  }
  Done allgather_into_tensor_coalesced(Tensors& out, Tensors& in, const c10d::AllgatherOptions& o) override {
    ask("all_gather", both(in, out));
    auto to = hosts(out), from = hosts(in);
    return done(inner->allgather_into_tensor_coalesced(to, from, o), out);
  }
  Done gather(Lists& out, Tensors& in, const c10d::GatherOptions& o) override {
    ask("gather", both(in, flat(out)));
    auto to = hosts(out);
    auto from = hosts(in);
    return done(inner->gather(to, from, o), flat(out));
  }
  Done scatter(Tensors& out, Lists& in, const c10d::ScatterOptions& o) override {
    ask("scatter", both(out, flat(in)));
    auto to = hosts(out);
    auto from = hosts(in);
    return done(inner->scatter(to, from, o), out);
  }
  Done reduce_scatter(Tensors& out, Lists& in, const c10d::ReduceScatterOptions& o) override {
    ask("reduce_scatter", both(out, flat(in)));
    auto to = hosts(out);
    auto from = hosts(in);
    return done(inner->reduce_scatter(to, from, o), out);
  }
  Done _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& o) override {
    ask("reduce_scatter", {in, out});
    auto to = on_host(out), from = on_host(in);
    return done(inner->_reduce_scatter_base(to, from, o), {out});
  }
  Done reduce_scatter_tensor_coalesced(Tensors& out, Tensors& in, const c10d::ReduceScatterOptions& o) override {
    ask("reduce_scatter", both(in, out));
    auto to = hosts(out), from = hosts(in);
    return done(inner->reduce_scatter_tensor_coalesced(to, from, o), out);
  }
  Done alltoall_base(at::Tensor& out, at::Tensor& in, Splits& to_splits, Splits& from_splits, const c10d::AllToAllOptions& o) override {
    ask("all_to_all", {in, out}, is_even(to_splits) && is_even(from_splits));
    auto to = on_host(out), from = on_host(in);
    return done(inner->alltoall_base(to, from, to_splits, from_splits, o), {out});
  }
  Done alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions& o) override {
    ask("all_to_all", both(in, out));
    auto to = hosts(out), from = hosts(in);
    return done(inner->alltoall(to, from, o), out);
  }
  Done send(Tensors& t, int rank, int tag) override {
    ask("send", t);
    auto host = hosts(t);
    return done(inner->send(host, rank, tag), t);
  }
  Done recv(Tensors& t, int rank, int tag) override {
    ask("recv", t);
    auto host = hosts(t);
    return done(inner->recv(host, rank, tag), t);
  }
  Done barrier(const c10d::BarrierOptions& o) override {
    ask("barrier", {});
    c10d::BarrierOptions plain;
    plain.timeout = o.timeout;
    return done(inner->barrier(plain), {});
  }
};

void add_group(py::module& module) {
  module.def("backend", [](c10::intrusive_ptr<c10d::Backend> inner, py::function check) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<Backend>(std::move(inner), std::move(check));
  });
}

}  // namespace twin
