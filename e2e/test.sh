#!/usr/bin/env bash
# Runs the end-to-end tests on the cluster that KUBECONFIG names, as go test -json prints them: first those that disturb everybody,
# which prepare side by side and disturb one after another, then all others.
set -uo pipefail
cd "$(dirname "$0")"
disturbing="^($(sed -n '/^func Test/h; /:= disturbing(t)/{ x; s/func \(Test[A-Za-z0-9_]*\).*/\1/p; }' tests/*_test.go | paste -sd'|'))\$"
failed=0
# gotestsum 1.13.0 does not know the event "artifacts" of Go 1.26: it then forgets what a failed test has printed.
run() {
  go test -json -count=1 -timeout 60m -artifacts -outputdir ../build/e2e "$@" ./tests/... |
    grep --line-buffered -v '"Action":"artifacts"' || failed=1
}
run -parallel 5 -run "$disturbing"
run -parallel 8 -skip "$disturbing"
exit "$failed"
