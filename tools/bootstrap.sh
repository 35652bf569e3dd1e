# Sourced by tools/run, tools/test and .ci/run, from the root of the checkout. Creates a .venv with the locked
# dependencies and this checkout; a second call returns at once.

log() { printf 'penstock: %s\n' "$*" >&2; }

# bootstrap running|testing
bootstrap() {
  local stamp=".venv/.penstock-$1" python want
  if [ "$1" = testing ]; then
    find_compiler
    install_prometheus
    install_node_example
  fi
  want="$(cat tools/requirements.lock pyproject.toml | cksum) $PWD"
  if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then return; fi
  if [ ! -x .venv/bin/python ]; then
    python="$(find_python)"
    log "creating .venv with $("$python" --version)"
    "$python" -m venv .venv
  fi
  install_locked "$1"
  log "installing penstock itself from this checkout"
  .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
  install_torch_libraries
  printf '%s\n' "$want" >"$stamp"
  if [ "$1" = testing ]; then printf '%s\n' "$want" >.venv/.penstock-running; fi
  log "ready"
}

# Prints the first Python of at least 3.11 on PATH; the lock was written with 3.11.
find_python() {
  local each
  for each in python3.11 python3.12 python3.13 python3.14 python3 python; do
    if "$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s' "$each"
      return
    fi
  done
  log "needs Python 3.11 or newer on PATH"
  return 1
}

# Workers compile their forward for the CPU. A compiler is the one requirement of the tests that no wheel contains.
find_compiler() {
  if command -v "${CXX:-g++}" clang++ >/dev/null; then return; fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    log "installing g++, which the tests need"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq --yes --no-install-recommends install g++ >/dev/null
  else
    log "needs a C++ compiler: sudo apt-get install g++"
    return 1
  fi
}

# A test scrapes a mesh with a real Prometheus. It skips if the program is missing.
install_prometheus() {
  if command -v prometheus >/dev/null || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then return; fi
  log "installing prometheus, which a test needs"
  apt-get -qq update || true
  DEBIAN_FRONTEND=noninteractive apt-get -qq --yes --no-install-recommends install prometheus >/dev/null ||
    log "prometheus could not be installed; its test is skipped"
}

# A test runs examples/node. It skips if npm is missing or the packages cannot be installed.
install_node_example() {
  local folder=examples/node
  if ! command -v npm >/dev/null || [ "$folder/node_modules/.package-lock.json" -nt "$folder/package-lock.json" ]; then
    return
  fi
  log "installing the packages of examples/node"
  npm ci --prefix "$folder" --no-audit --no-fund --ignore-scripts --silent ||
    log "npm cannot install them; the test of examples/node will skip"
}

install_locked() {
  local requirements=.venv/requirements.txt count
  if [ "$1" = running ]; then
    sed '/^# Beside that/,$d' tools/requirements.lock
  else
    cat tools/requirements.lock
  fi | grep '==' >"$requirements"
  count="$(grep -c == "$requirements")"
  log "installing $count locked packages (several hundred MB the first time, most of it torch)"
  PYTHONUNBUFFERED=1 .venv/bin/python -m pip install --no-deps --progress-bar off --requirement "$requirements" 2>&1 |
    show_progress "$count"
}

# Reduces the output of pip to one line for every tenth package and the last steps.
show_progress() {
  awk -v count="$1" '
    /^(Collecting|Requirement already satisfied:)/ {
      seen++
      name = /^Collecting/ ? $2 : $4
      if (seen % 10 == 0) { printf "penstock:   %d of %d, %s\n", seen, count, name; fflush() }
    }
    /^Installing collected packages/ { printf "penstock:   unpacking\n"; fflush() }
    /^ERROR/ { print; fflush() }
  ' >&2
}

# If the index has no CPU wheel, torch is the CUDA build, whose libraries the lock does not name.
install_torch_libraries() {
  if .venv/bin/python -c 'import torch' 2>/dev/null; then return; fi
  log "installing the libraries that this build of torch needs"
  .venv/bin/python -m pip install --quiet --progress-bar off "$(grep '^torch==' tools/requirements.lock)"
}
