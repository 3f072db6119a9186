// tidegate.ManualClock, and clocks that are written in Python.
#include "tidegate/clock.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <utility>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/functions.h"
#include "limiter/gil.h"
#include "server/capsules.h"

namespace tidegate::python {
namespace {

constexpr const char* kAccepted =
    "; expected None, a ManualClock, an object with now_ns(), or a callable that returns int "
    "nanoseconds or float seconds since the epoch";

// So near to the time of now is no clock that counts nanoseconds from the start of its host, except
// for milliseconds in a lifetime.
constexpr int64_t kNearNs = 2'000'000'000;
constexpr std::pair<const char*, int64_t> kOtherUnits[] = {
    {"microseconds", 1'000}, {"milliseconds", 1'000'000}, {"seconds", 1'000'000'000}};

// Calls Python for each reading. An exception of the callable is raised by the call that needed the
// time.
class PythonClock final : public Clock {
 public:
  explicit PythonClock(const py::object& read) : read_(read) {}

  // Reads the clock once. Refuses one that cannot be read, or that counts in another unit.
  void Check() const {
    const py::object now = CallPython(read_.get());
    const int64_t ns = NsOf(now);
    if (PyFloat_Check(now.ptr())) return;
    for (const auto& [name, unit_ns] : kOtherUnits) {
      if (std::abs(SystemClock::Get().Now() / unit_ns - ns) > kNearNs / unit_ns) continue;
      Throw(Error::kConfiguration, "the clock returned " + Shown(now.ptr()) +
                                       ", which is the time of now in " + name +
                                       "; expected int nanoseconds, as of time.time_ns(), or "
                                       "float seconds");
    }
  }

  int64_t NowNs() override {
    int64_t ns = 0;
    // A thread of the core only confirms an earlier reading, so it can do without this one.
    if (!WithGil([&] { ns = Read(); })) throw PythonRaised();
    return ns;
  }

 private:
  int64_t Read() const {
    const py::object read = read_.get();
    if (!read) Throw(Error::kClosed, "the clock was freed; expected a limiter that is still used");
    return NsOf(CallPython(read));
  }

  static int64_t NsOf(const py::object& now) {
    if (PyFloat_Check(now.ptr())) return NsOf(PyFloat_AS_DOUBLE(now.ptr()), now);
    if (PyBool_Check(now.ptr()) || !PyIndex_Check(now.ptr())) Refuse(now);
    int overflow = 0;
    const int64_t ns = PyLong_AsLongLongAndOverflow(now.ptr(), &overflow);
    if (overflow != 0) return overflow < 0 ? 0 : kMaxInstantNs;
    if (ns == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    return std::clamp<int64_t>(ns, 0, kMaxInstantNs);
  }

  // Rounded to the finest decimal that a double of this size can represent, microseconds in this
  // century: 1767225600.1 means that decimal, not the nearest double, which lies 95 ns before it.
  static int64_t NsOf(double seconds, const py::object& now) {
    if (!std::isfinite(seconds)) Refuse(now);
    const double most = static_cast<double>(kMaxInstantNs);
    const int64_t ns = std::llround(std::clamp(seconds * 1e9, 0.0, most));
    const double step_ns = 2e9 * (std::nextafter(seconds, HUGE_VAL) - seconds);
    int64_t grain_ns = 1;
    while (static_cast<double>(grain_ns) < step_ns && grain_ns < 1'000'000) grain_ns *= 10;
    return (ns + grain_ns / 2) / grain_ns * grain_ns;
  }

  [[noreturn]] static void Refuse(const py::object& now) {
    Throw(Error::kArgumentType, "the clock returned " + Shown(now.ptr()) +
                                    "; expected int nanoseconds or float seconds since the epoch");
  }

  const WeakFunction read_;
};

// Whether `clock` is a ManualClock without a subclass's own now_ns().
bool IsPlainManualClock(const py::object& clock) {
  constexpr const char* kName = "now_ns";
  return py::isinstance<ManualClock>(clock) &&
         py::type::of(clock).attr(kName).is(py::type::of<ManualClock>().attr(kName));
}

}  // namespace

GivenClock ClockFrom(const py::object& clock) {
  if (clock.is_none()) return {};
  if (IsPlainManualClock(clock)) return {clock.cast<std::shared_ptr<ManualClock>>(), {}};
  const bool named =
      py::hasattr(clock, "now_ns") && PyCallable_Check(clock.attr("now_ns").ptr()) != 0;
  if (!named && PyCallable_Check(clock.ptr()) == 0) {
    Throw(Error::kArgumentType, "the clock is " + Shown(clock.ptr()) + kAccepted);
  }
  py::object function = Referable(named ? py::object(clock.attr("now_ns")) : clock);
  auto read = std::make_shared<PythonClock>(function);
  read->Check();
  return {std::move(read), std::move(function)};
}

void RegisterClock(py::module_& m) {
  m.attr("CLOCK_TOLERANCE_NS") = kClockToleranceNs;
  py::options options;
  options.disable_function_signatures();  // the one below is read by inspect.signature()
  py::class_<ManualClock, std::shared_ptr<ManualClock>>(m, "ManualClock")
      .def(py::init([](const py::object& start_ns) {
             auto clock = std::make_shared<ManualClock>();
             clock->SetNs(NsFrom(start_ns, "start_ns"));
             return clock;
           }),
           py::arg("start_ns") = 0)
      .def(
          "advance",
          [](ManualClock& clock, const py::object& seconds) {
            double value = 0;
            if (PyBool_Check(seconds.ptr()) ||
                !(PyFloat_Check(seconds.ptr()) || PyIndex_Check(seconds.ptr()))) {
              Throw(Error::kArgumentType, "the seconds to advance are " + Shown(seconds.ptr()) +
                                              "; expected an int or a float");
            }
            value = PyFloat_AsDouble(seconds.ptr()) * 1e9;
            if (PyErr_Occurred() != nullptr) {  // the int is too large for a double
              PyErr_Clear();
              value = py::int_(0) > seconds ? -HUGE_VAL : HUGE_VAL;
            }
            if (std::isnan(value) || (PyFloat_Check(seconds.ptr()) && std::isinf(value))) {
              Throw(Error::kConfiguration, "the seconds to advance are " + Shown(seconds.ptr()) +
                                               "; expected a finite number");
            }
            const double most = static_cast<double>(kMaxInstantNs);
            clock.AdvanceNs(std::llround(std::clamp(value, -most, most)));
          },
          py::arg("seconds"))
      .def(
          "advance_ns",
          [](ManualClock& clock, const py::object& ns) {
            clock.AdvanceNs(NsFrom(ns, "the time to advance"));
          },
          py::arg("ns"))
      .def(
          "set_ns",
          [](ManualClock& clock, const py::object& ns) { clock.SetNs(NsFrom(ns, "the time")); },
          py::arg("ns"))
      .def("now_ns", &ManualClock::NowNs, "now_ns(self)\n--\n\nNanoseconds since the epoch.");
  m.def(
      "native_clock",
      [](const py::object& clock) {
        GivenClock given = ClockFrom(clock);
        std::shared_ptr<Clock> native = std::move(given.clock);
        if (native == nullptr) native = {std::shared_ptr<Clock>(), &SystemClock::Get()};
        if (given.function) native = KeptBy(given.function, std::move(native));
        return ToCapsule(std::move(native), kClockCapsule);
      },
      py::arg("clock"));
  m.def("system_now_ns", [] { return SystemClock::Get().Now(); });
}

}  // namespace tidegate::python
