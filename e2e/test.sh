#!/usr/bin/env bash
# Runs the end-to-end tests, and prints the events of go test -json. Tests that disturb all others run one after another. Tests that must
# be alone take half as long, so the tests of the doze follow them on their cluster. With clusters in the networks "turns" and "alone"
# (BESIDE) these groups run at the same time; otherwise all tests share one cluster. RUN chooses tests, and CORE leaves out those that
# begin with whole: either way they share one cluster.
set -uo pipefail
cd "$(dirname "$0")"
mkdir -p ../build/e2e
go test -c -o ../build/e2e/tests ./tests || exit
# beginning FUNCTION prints a pattern for the tests that begin with a call of the function.
beginning() { echo "^($(sed -n "/^func Test/h; /:= $1(t)/{ x; s/func \(Test[A-Za-z0-9_]*\).*/\1/p; }" tests/*_test.go | paste -sd'|'))\$"; }
# tests NETWORK FLAG... is the command for tests on the cluster of a network. It leaves the shell in their folder.
tests() {
	local network=$1
	shift
	local kept=$PWD/../build/e2e/kept${network:+/$network}
	mkdir -p "$kept"
	echo "cd '$PWD/tests' && SCALE_TO_ZERO_NETWORK=${network:-${SCALE_TO_ZERO_NETWORK:-}} $INSIDE go tool test2json -t -p e2e/tests${network:+/$network} ../../build/e2e/tests" \
		"-test.v=test2json -test.timeout=180m -test.artifacts -test.outputdir='$kept' $*"
}
# gotestsum 1.13.0 does not know the event "artifacts" of Go 1.26: it then forgets what a failed test has printed.
beside() {
	go run ./cmd/sidebyside "$@" | grep --line-buffered -v '"Action":"artifacts"'
	return "${PIPESTATUS[0]}"
}
turns=$(beginning disturbing) alone=$(beginning alone) doze=^TestDoze_ nodes=^TestNodes_
if [ -n "${BESIDE:-}" ]; then
	# A cluster that is not needed any more goes: its processes have work even if nobody uses it.
	ends() { echo "; status=\$?; SCALE_TO_ZERO_NETWORK=$1 ../../build/cluster down 2>../../build/e2e/down$1.log; exit \$status"; }
	together=(
		"$(tests turns -test.parallel=1 "-test.run='$turns'")$(ends turns)"
		"$(tests alone "-test.run='$alone'" "-test.skip='$nodes'"); first=\$?; $(tests alone -test.parallel=2 "-test.run='$doze'" "-test.skip='$turns|$alone'") && (exit \$first)$(ends alone)"
		"$(tests "" -test.parallel=2 "-test.skip='$turns|$alone|$doze'")"
	)
else
	together=("$(tests "" -test.parallel=2 "-test.run='${RUN:-}'")")
fi
beside "${together[@]}"
