#!/usr/bin/env bash
# Unpacks the dependencies that cmake/Dependencies.cmake pins from Debian's source packages, for
# machines that reach their distribution's mirror but not the projects' own hosts, and prints the
# cmake options that build from them:
#
#   cmake --preset tsan $(scripts/debian-sources.sh build/sources)
#
# Prints nothing if apt-get does not have exactly these releases; then FetchContent downloads them.
# Needs no root: it keeps package lists of its own.
set -euo pipefail

dir=${1:?usage: debian-sources.sh DIR}

# Debian repacks Abseil under another folder name, and has an older hiredis, whose parser is the
# same. The other archives are, to the byte, those that Dependencies.cmake names.
archives=(
  "absl       abseil     20220623.1 abfe2897f3a30edaa74bc34365afe3c2a3cd012091a97dc7e008f7016adcd5fe"
  "hiredis    hiredis    0.14.1     2663b2aed9fd430507e30fc5e63274ee40cdd1a296026e22eafd7d99b01c8913"
  "xxhash     xxhash     0.8.1      3bb6b7d6f30c591dd65aaaff1c8b7a5b94d81687998ca9400082c739a690436c"
  "nghttp2    nghttp2    1.52.0     6b71561a9950b4a90fa36aa3160763f1437f3730d7a12434e416aa3f4ab145e0"
  "simdjson   simdjson   3.0.1      156b1bc5eb0561b2bd166b46d191fd3d95a3e709cc63761477d3b7aec2b6e9ed"
  "googletest googletest 1.12.1     81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2"
  "benchmark  benchmark  1.7.1      6430e4092653380d9dc4ccb45a1e2dc9259d581f4866dc0759713126056bc1d7"
)

say() { echo "$@" >&2; }

if ! command -v apt-get >/dev/null || ! grep -q '^VERSION_CODENAME=bookworm' /etc/os-release; then
  say "Not Debian 12: the sources come from where cmake/Dependencies.cmake says."
  exit 0
fi

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
apt_options=(
  -o Dir::Etc::sourcelist=/dev/null
  -o "Dir::Etc::sourceparts=$dir/apt/sources"
  -o "Dir::State::lists=$dir/apt/lists"
  -o "Dir::Cache=$dir/apt/cache"
  -o APT::Sandbox::User=
)

# The machine's own Debian mirror, used only for sources.
list_sources() {
  mkdir -p "$dir/apt/sources" "$dir/apt/lists/partial" "$dir/apt/cache"
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  if [ -f /etc/apt/sources.list.d/debian.sources ]; then
    sed -E 's/^Types:.*/Types: deb-src/; s/^Components:.*/Components: main/' \
      /etc/apt/sources.list.d/debian.sources >"$dir/apt/sources/debian.sources"
  else
    grep -hE '^deb .* bookworm main' /etc/apt/sources.list |
      sed -E "s|^deb (\[[^]]*\] )?|deb-src [signed-by=$keyring] |" >"$dir/apt/sources/debian.list"
  fi
  apt-get "${apt_options[@]}" -qq update >&2
}

options=()
for row in "${archives[@]}"; do
  read -r name package version sha256 <<<"$row"
  if [ ! -f "$dir/$name/.complete" ]; then
    [ -d "$dir/apt/sources" ] || list_sources
    archive=${package}_$version.orig.tar.gz
    (cd "$dir/apt" && apt-get "${apt_options[@]}" -qq source --download-only "$package" >&2) || true
    if ! echo "$sha256  $dir/apt/$archive" | sha256sum --check --status 2>/dev/null; then
      say "$package $version was not found as it was pinned: it comes from where" \
        "cmake/Dependencies.cmake says."
      continue
    fi
    rm -rf "${dir:?}/$name"
    mkdir -p "$dir/$name"
    tar -xzf "$dir/apt/$archive" -C "$dir/$name" --strip-components=1
    touch "$dir/$name/.complete"
  fi
  options+=("-DFETCHCONTENT_SOURCE_DIR_${name^^}=$dir/$name")
done

# Debian 12 has the sources of llhttp 8.1 in a package for programs, with its own fixes.
if [ ! -f "$dir/llhttp/.complete" ]; then
  rm -rf "${dir:?}/llhttp" "$dir/apt/llhttp"
  mkdir -p "$dir/apt/llhttp" "$dir/llhttp"
  if (cd "$dir/apt/llhttp" && apt-get -qq download node-llhttp && dpkg-deb -x ./*.deb .) >&2; then
    cp -r "$dir/apt/llhttp/usr/share/llhttp" "$dir/llhttp/src"
    cp -r "$dir/apt/llhttp/usr/share/include/llhttp" "$dir/llhttp/include"
    touch "$dir/llhttp/.complete"
  fi
fi
if [ -f "$dir/llhttp/.complete" ]; then
  options+=("-DFETCHCONTENT_SOURCE_DIR_LLHTTP=$dir/llhttp")
else
  say "node-llhttp was not found: llhttp comes from where cmake/ServerDependencies.cmake says."
fi
echo "${options[*]}"
