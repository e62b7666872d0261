#!/usr/bin/env bash
# Runs the end-to-end tests, and prints the events of go test -json. With a cluster in the network "alone" (BESIDE), the tests that must be
# alone and those of the doze run there, one after another, while all others run on the main cluster: first, because they do not call
# t.Parallel, those that disturb all others, and then two at a time. Without BESIDE all tests share one cluster: for fewer than four processors
# another cluster is too much, so that samples and probes time out. RUN chooses tests, and CORE leaves out those that begin with whole.
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
		"-test.v=test2json -test.timeout=300m -test.artifacts -test.outputdir='$kept' $*"
}
# gotestsum 1.13.0 does not know the event "artifacts" of Go 1.26: it then forgets what a failed test has printed.
beside() {
	go run ./cmd/sidebyside "$@" | grep --line-buffered -v '"Action":"artifacts"'
	return "${PIPESTATUS[0]}"
}
alone=$(beginning alone) doze=^TestDoze_ nodes=^TestNodes_
if [ -n "${BESIDE:-}" ]; then
	# A cluster that is not needed any more goes: its processes have work even if nobody uses it.
	together=(
		"$(tests alone -test.parallel=1 "-test.run='$alone|$doze'" "-test.skip='$nodes'"); status=\$?; SCALE_TO_ZERO_NETWORK=alone ../../build/cluster down 2>../../build/e2e/down.log; exit \$status"
		"$(tests "" -test.parallel=2 "-test.skip='$alone|$doze|$nodes'")"
	)
else
	together=("$(tests "" -test.parallel=2 "-test.run='${RUN:-}'")")
fi
beside "${together[@]}"
