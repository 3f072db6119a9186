#!/usr/bin/env bash
# Builds a wheel with every dependency linked in, as a release does, checks that it needs only
# libraries of every Linux, and tries it in an empty environment.
#
#   scripts/make-wheel.sh PYTHON    PYTHON's environment holds auditwheel and the build tools
set -euo pipefail

python=${1:?usage: make-wheel.sh PYTHON}
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
export PATH=$(dirname "$python"):$PATH
cd "$(dirname "$0")/.."

options=(--config-settings=cmake.define.TIDEGATE_FETCH=ON --config-settings=build-dir=build/wheel)
for option in $(scripts/debian-sources.sh build/sources); do
  options+=("--config-settings=cmake.define.${option#-D}")
done
rm -rf build/wheel-made build/wheel-tried wheelhouse
"$python" -m pip wheel --quiet --no-deps --no-build-isolation "${options[@]}" -w build/wheel-made .

if [ "$(uname)" = Linux ]; then
  "$python" -m auditwheel repair --wheel-dir wheelhouse build/wheel-made/*.whl
  wheel=$(echo wheelhouse/*.whl)
  "$python" -m auditwheel show "$wheel"
  "$python" -m zipfile -e "$wheel" build/wheel-tried/unpacked
  for library in $(find build/wheel-tried/unpacked -name '*.so*' -exec readelf -d {} + |
    sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u); do
    case $library in
      libc.so.6 | libm.so.6 | libgcc_s.so.1 | libstdc++.so.6 | libpthread.so.0 | ld-linux-*) ;;
      libz.so.1) ;; # which the rules of manylinux expect everywhere, and Python itself needs
      *)
        # The wheel includes OpenSSL, for Redis over TLS.
        [ -z "$(find build/wheel-tried/unpacked -name "$library")" ] || continue
        echo "the wheel needs $library, which is not everywhere" >&2
        exit 1
        ;;
    esac
  done
else
  mkdir -p wheelhouse
  cp build/wheel-made/*.whl wheelhouse
  wheel=$(echo wheelhouse/*.whl)
fi

"$python" -m venv build/wheel-tried/venv
build/wheel-tried/venv/bin/python -m pip install --quiet --no-index "$wheel"
cd build/wheel-tried
venv/bin/python - <<'PYTHON'
import importlib.util
from pathlib import Path

import tidegate

# The packages that hold the others import what is not installed here.
for path in Path(tidegate.__file__).parent.glob("*/*.so"):
    importlib.util.module_from_spec(importlib.util.spec_from_file_location(path.name.partition(".")[0], path))

server = Path(tidegate.__file__).parent / "server"
if list(server.glob("_native*")):
    assert (server / "proto/tidegate/v1/ratelimit.proto").is_file()
limiter = tidegate.Limiter("3/minute", clock=tidegate.ManualClock())
assert [limiter.allow("key") for _ in range(4)] == [True, True, True, False]
assert limiter.hit("key").retry_after == 20.0
PYTHON
venv/bin/tidegate version
cd ../..
"$python" scripts/try-readme.py "$wheel"
if [ "$(uname)" = Linux ]; then # it reads ELF files
  name=$(basename "$wheel")
  "$python" scripts/bill_of_materials.py "$wheel" build/sources >"wheelhouse/${name%.whl}.cdx.json"
fi
echo "$wheel works"
