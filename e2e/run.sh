#!/usr/bin/env bash
# Runs the end-to-end tests on the cluster of KUBECONFIG or on those that on-cluster.sh has made, and then, even after
# failures, checks their audit logs and replays their traces. RUN selects tests, as go test -run does, and CORE leaves
# out those that call whole.
set -uo pipefail
cd "$(dirname "$0")/.."
rm -rf build/e2e
mkdir -p build/e2e
trap 'exit 130' INT TERM
status=0
# Build first: a build while tests run would slow them down.
if [ -n "${PROVIDE:-}" ] && [ -z "${RUN:-}" ]; then
	needed=(PROMETHEUS ALERTMANAGER)
	[ -n "${CORE:-}" ] || needed+=(NEIGHBOUR_IMAGE NEXT_TAG DRIVERS_IMAGE CERT_MANAGER_IMAGE CERT_MANAGER_CHART KUSTOMIZE_CONTROLLER_IMAGE)
	for variable in "${needed[@]}"; do "$PROVIDE" "$variable" >/dev/null || status=1; done
fi
export COST=$PWD/build/e2e/cost.json
go -C e2e tool gotestsum --format testname --jsonfile ../build/e2e/tests.json --raw-command -- ./test.sh || status=1
grep -q '"Action":"run"' build/e2e/tests.json || { echo "no test matches RUN=${RUN:-}" >&2; status=1; }
if [ -s "$COST" ]; then
	echo "seconds of the processors' time that tests took: of their own pods, as their share of the rest; and how long they ran (build/e2e/cost.json)"
	sed 's/{"test":"\([^"]*\)","seconds":\([^,]*\),"pods":\([^,]*\),"shared":\([^}]*\)}/\1 \2 \3 \4/' "$COST" |
		awk '{ ran[$1] += $2; own[$1] += $3; rest[$1] += $4 } END { for (t in ran) printf "%8.1f %8.1f %8.0f  %s\n", own[t], rest[t], ran[t], t }' | sort -rn
fi
if [ -n "${PROVIDE:-}" ]; then # the log of the API server is there
	# The audit needs every test, because some of them use only some of the rights.
	[ -n "${RUN:-}${CORE:-}" ] || build/cluster audit ${BESIDE:-} nodes || status=1 # those of two nodes ran before
	build/cluster traces build/e2e/traces ${BESIDE:-} || status=1
	if compgen -G 'build/e2e/traces/*.trace' >/dev/null; then
		go test -count=1 -v -run '^TestReplay$' ./sidecar/sleep -traces "$PWD/build/e2e/traces" || status=1
	elif [ -z "${RUN:-}" ]; then # not every test makes a cluster
		status=1
	fi
fi
# A test that failed beside others runs once more alone, to distinguish load from a defect. The run fails all the same.
failed=$(sed -n '/"Action":"fail"/ s/.*"Test":"\([^"\/]*\)".*/\1/p' build/e2e/tests.json | sort -u)
for name in $failed; do
	if (cd e2e/tests && $INSIDE ../../build/e2e/tests -test.run="^$name\$" -test.timeout=20m >"../../build/e2e/$name.log" 2>&1); then
		echo "alone: passed $name"
	else
		echo "alone: failed $name (build/e2e/$name.log)"
	fi
done
exit "$status"
