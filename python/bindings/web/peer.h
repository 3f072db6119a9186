// The attributes that every request has for rules.
#ifndef TIDEGATE_PYTHON_BINDINGS_WEB_PEER_H_
#define TIDEGATE_PYTHON_BINDINGS_WEB_PEER_H_

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>

#include "rules/rule_limiter.h"

namespace tidegate::python {

// The address of the connection in the most frequent form: in an ASGI scope or a WSGI environ, or
// in that of a framework's request, in ASCII and without the colon of IPv6. Else None, and
// tidegate.keys.peer handles the request. A new reference.
PyObject* PlainPeer(PyObject* request);

// The attributes endpoint, method and ip of a request of HTTP in the most frequent form: an ASGI
// scope, or a framework's request that has one. False for other requests.
class PlainRequest {
 public:
  static constexpr size_t kAttributes = 3;

  // The name of the cost among attributes, borrowed.
  static PyObject* Cost();

  explicit PlainRequest(PyObject* request);
  PlainRequest(const PlainRequest&) = delete;
  PlainRequest& operator=(const PlainRequest&) = delete;
  ~PlainRequest();

  explicit operator bool() const { return is_plain_; }
  const std::array<NamedAttribute, kAttributes>& attributes() const { return attributes_; }

  // A new dict of the attributes and the cost, or nullptr with an exception set.
  PyObject* AttributesWith(PyObject* cost) const;

 private:
  std::array<NamedAttribute, kAttributes> attributes_{};  // holds references to the values
  bool is_plain_ = false;
};

// The same from the values of the attributes alone, in their order.
PyObject* AttributeDict(PyObject* cost, PyObject* const (&values)[PlainRequest::kAttributes]);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_WEB_PEER_H_
