#!/usr/bin/env bash
# Installs the Debian packages that a task needs and that are missing:
#
#   scripts/install-deps.sh limiter the Python package without the components tuning and server
#   scripts/install-deps.sh build   the whole Python package
#   scripts/install-deps.sh test    the tests and linters too
#   scripts/install-deps.sh bench   what benchmarks need beside the tests
#   scripts/install-deps.sh fuzz    the fuzzers
#
# Without apt-get it lists the dependencies of the build and installs nothing.
set -euo pipefail

python=${PYTHON:-python3}
missing=()

# package NAME PURPOSE
package() {
  if ! command -v dpkg-query >/dev/null; then
    missing+=("$1 ($2)")
  elif ! dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^ii'; then
    missing+=("$1")
  fi
}

command -v "$python" >/dev/null || package python3 "Python 3.9 or newer"
command -v g++ >/dev/null || command -v c++ >/dev/null || package g++ "a C++20 compiler"
command -v cmake >/dev/null || package cmake "CMake 3.24 or newer"
"$python" -c 'import ensurepip, venv' 2>/dev/null || package python3-venv "virtual environments"
"$python" -c 'import os, sysconfig
raise SystemExit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null ||
  package python3-dev "Python.h, to build the extension"
package libabsl-dev "Abseil; downloaded and built where it is not found"
package libxxhash-dev "xxHash, the hash of keys; downloaded where it is not found"
package libhiredis-dev "hiredis, the protocol of Redis; downloaded and built where it is not found"
package libssl-dev "OpenSSL, for TLS and digests"
if [ "${1:-}" != limiter ]; then
  package libsimdjson-dev "simdjson, for JSON in logs and requests; downloaded and built where it is not found"
  package libnghttp2-dev "nghttp2, the HTTP/2 of the server; downloaded and built where it is not found"
  # The parser of HTTP/1.1 of the server: a library, or in Debian 12 its sources.
  case $(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}") in
    bookworm) package node-llhttp "the sources of llhttp" ;;
    trixie | forky | sid) package libllhttp-dev "llhttp" ;;
    *) if ! command -v dpkg-query >/dev/null || apt-cache show libllhttp-dev >/dev/null 2>&1; then
      package libllhttp-dev "llhttp, the parser of HTTP/1.1 of the server; downloaded and built where it is not found"
    fi ;;
  esac
  package zlib1g-dev "zlib, which unpacks messages to the server"
  package libprotozero-dev "protozero, the protobuf of the server; downloaded where it is not found"
fi

case ${1:-} in
  limiter | build) ;;
  test)
    package libgtest-dev "GoogleTest; downloaded and built where it is not found"
    package libgmock-dev "its matchers"
    package libbenchmark-dev "Google Benchmark; downloaded and built where it is not found"
    package redis-server "the server that the tests start for themselves"
    package postgresql "the database that the tests start for themselves"
    package nginx-light "the gateway that asks the service, which the tests start for themselves"
    package chromium "the browser that the dashboard is tried in"
    package openssl "certificates for the tests of TLS"
    package clang-14 "the compiler whose view of the code clang-tidy takes"
    package clang-format-14 "the formatter"
    package clang-tidy-14 "the linter"
    ;;
  bench)
    package wrk "the load generator of HTTP/1.1"
    package nghttp2-client "h2load, the load generator of HTTP/2"
    package nghttp2-server "nghttpd, the server that ours is compared with"
    package redis-tools "redis-benchmark"
    ;;
  fuzz)
    package clang-14 "a compiler with libFuzzer"
    package libclang-rt-14-dev "libFuzzer and the sanitizers' runtime"
    ;;
  *)
    echo "usage: install-deps.sh limiter|build|test|bench|fuzz" >&2
    exit 2
    ;;
esac

[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "There is no apt-get here. What stands on this system for these Debian packages?"
  printf '  %s\n' "${missing[@]}"
  echo "Going on; a step that lacks one of them will say so."
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "Missing, and neither root nor sudo is at hand. As root, run:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "Installing ${missing[*]}"
as_root+=(env DEBIAN_FRONTEND=noninteractive)
"${as_root[@]}" apt-get -qq update || echo "apt-get update failed; going on with the lists there are"
"${as_root[@]}" apt-get -qq install --no-install-recommends --yes "${missing[@]}" >/dev/null
