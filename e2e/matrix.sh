#!/usr/bin/env bash
# Runs the end-to-end tests of the pattern $1 on one cluster after another, each of other versions, and writes a table of what became of
# them to build/matrix. The other arguments are combinations OPERATOR/KUBERNETES/POSTGRESQL.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$PWD/build/matrix
mkdir -p "$results"
export REQUIRE_CLUSTER=1 TESTS=$1
shift
flags() {
	local versions
	IFS=/ read -ra versions <<<"$1"
	if [ "${#versions[@]}" != 3 ]; then
		echo "matrix: combination \"$1\": allowed is OPERATOR/KUBERNETES/POSTGRESQL, such as 1.29.1/1.34.4/17" >&2
		return 1
	fi
	echo "-operator ${versions[0]} -kubernetes ${versions[1]} -postgres ${versions[2]}"
}
# Versions that there are not are found before the first cluster is made.
for combination in "$@"; do
	# shellcheck disable=SC2046
	chosen=$(flags "$combination") && go -C e2e run ./cmd/cluster prepare $chosen || exit
done
# ended ACTION FILE has the names of the tests that ended so, but not of their parts: "0", or "2: TestA, TestB".
ended() {
	sed -n "/\"Action\":\"$1\"/ s/.*\"Test\":\"\([^\"\/]*\)\".*/\1/p" "$2" | sort |
		awk '{ names = names (NR > 1 ? ", " : ": ") $0 } END { print NR names }'
}
status=0
{
	echo "| CloudNativePG | Kubernetes | PostgreSQL | passed | failed | left out | minutes |"
	echo "|---|---|---|---|---|---|---|"
} | tee "$results/table.md"
for combination in "$@"; do
	log=$results/${combination//\//-}
	began=$SECONDS
	: >"$log.json"
	code=0
	env -u KUBECONFIG CLUSTERFLAGS="$(flags "$combination")" EVENTS="$log.json" e2e/on-cluster.sh sh -c \
		'go -C e2e tool gotestsum --format standard-verbose --jsonfile "$EVENTS" --raw-command -- \
		go test -exec "$INSIDE" -count=1 -timeout 60m -parallel 5 -json -run "$TESTS" ./tests/...' >"$log.log" 2>&1 || code=$?
	passed=$(ended pass "$log.json") failed=$(ended fail "$log.json")
	if [ "$code" != 0 ]; then
		status=1
		[ "$failed" != 0 ] || failed="not run to the end"
	fi
	# After every cluster: the next one may never end.
	echo "| ${combination//\// | } | ${passed%%:*} | $failed | $(ended skip "$log.json") | $(((SECONDS - began + 30) / 60)) |" | tee -a "$results/table.md"
done
exit "$status"
