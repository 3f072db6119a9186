#!/usr/bin/env bash
# Builds the limiter alone into the virtual environment $VENV, and runs the demo. Says each step with
# its seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=${VENV:-.venv}
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input)
began=$SECONDS

# step TEXT COMMAND...: its output is shown only if it fails.
step() {
  local text=$1 since=$SECONDS log
  shift
  log=$(mktemp)
  printf '%-62s' "$text"
  if ! "$@" >"$log" 2>&1; then
    printf 'failed\n'
    cat "$log" >&2
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
  printf '%4d s\n' $((SECONDS - since))
}

# Shows how many of the limiter's sources are compiled, in one line of a terminal.
compile() {
  local log since=$SECONDS status=0
  log=$(mktemp)
  CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)} \
    "$venv/bin/python" -m pip install --verbose --disable-pip-version-check --no-input \
    --no-build-isolation --no-deps --config-settings=build-dir=build/demo \
    --config-settings=cmake.define.TIDEGATE_COMPONENTS=limiter \
    --config-settings=cmake.define.TIDEGATE_IPO=OFF \
    --config-settings=cmake.define.CMAKE_CXX_FLAGS_RELEASE='-O1 -DNDEBUG' \
    --config-settings=cmake.define.TIDEGATE_OUTER_OPTIONS=-Og . 2>&1 | tee "$log" |
    sed -nu 's/^ *\[\([0-9]*\)\/\([0-9]*\)\] .*/\1 \2/p' | while read -r done all; do
      if [ -t 1 ]; then
        printf '\r3/4 Compiling the limiter: %d of %d ' "$done" "$all"
      elif [ $((done * 4 / all)) -ne $(((done - 1) * 4 / all)) ]; then
        echo "3/4 Compiling the limiter: $done of $all"
      fi
    done || status=$?
  [ ! -t 1 ] || printf '\r'
  if [ "$status" -ne 0 ]; then
    echo "3/4 Compiling the limiter failed:" >&2
    cat "$log" >&2
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
  printf '%-62s%4d s\n' "3/4 The limiter is compiled and installed into $venv" $((SECONDS - since))
}

# Nothing else is needed where the whole package is installed, or the limiter of these sources.
newest() { [ -e "$1" ] && [ -z "$(find pyproject.toml CMakeLists.txt cmake cpp lua python -newer "$1" -type f -not -path '*/__pycache__/*' | head -n 1)" ]; }

since=$SECONDS
PYTHON=$python scripts/install-deps.sh limiter
printf '%-62s%4d s\n' "1/4 The compiler and the libraries are installed" $((SECONDS - since))
[ -x "$venv/bin/python" ] || step "2/4 Making the virtual environment $venv" "$python" -m venv "$venv"
# Beside the build tools, which leave a core idle, and the compiler.
web_log=$(mktemp)
"${pip[@]}" 'fastapi>=0.108' 'uvicorn>=0.23' >"$web_log" 2>&1 &
web=$!
step "2/4 Installing the build tools" "${pip[@]}" -r python/requirements.txt
if newest "$venv/.package" || newest "$venv/.tested" || newest "$venv/.quick" || newest "$venv/.demo"; then
  echo "3/4 tidegate is installed into $venv already"
else
  compile
  touch "$venv/.demo"
fi
if ! wait "$web"; then
  echo "Installing FastAPI and uvicorn failed:" >&2
  cat "$web_log" >&2
  exit 1
fi
rm -f "$web_log"
echo "4/4 Starting the service, $((SECONDS - began)) s after the beginning"
echo
exec "$venv/bin/tidegate" demo
