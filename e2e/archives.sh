#!/bin/bash
# Installs every archive in build/archives with krew, and checks that the program for this machine reports version $1.
set -euo pipefail
cd "$(dirname "$0")/../build/archives"
fail() { echo "archives: $*" >&2; exit 1; }

sha256sum --strict --quiet -c checksums.txt
go -C ../../e2e/build/krew tool validate-krew-manifest -skip-install -manifest "$PWD/scale-to-zero.yaml"
krew=$(go -C ../../e2e/build/krew tool -n krew)
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

for platform in {darwin,linux,windows}_{amd64,arm64}; do
  name=kubectl-scale_to_zero_$1_$platform
  archive=$(ls "$name".tar.gz "$name".zip 2>/dev/null) || true
  export KREW_ROOT=$directory/$platform KREW_OS=${platform%_*} KREW_ARCH=${platform#*_}
  "$krew" install --manifest scale-to-zero.yaml --archive "$archive" >"$directory/log" 2>&1 || fail "$(cat "$directory/log")"
  store=$KREW_ROOT/store/scale-to-zero/$1
  for file in LICENSE licenses/LICENSE.go licenses/k8s.io/client-go/LICENSE licenses/github.com/spf13/cobra/LICENSE.txt; do
    test -s "$store/$file" || fail "$archive has no $file"
  done
  for module in $(go version -m "$store"/kubectl-scale_to_zero* | awk '$1 == "dep" { print $2 "@" $3 }'); do
    grep -qF "pkg:golang/$module" "$name.cdx.json" || fail "$name.cdx.json does not name $module"
  done
  echo "$archive: installed"
done

said=$("$directory/$(go env GOOS)_$(go env GOARCH)/bin/kubectl-scale_to_zero" --version)
test "$said" = "kubectl scale_to_zero version $1" || fail "the program says $said"
