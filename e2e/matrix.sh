#!/usr/bin/env bash
# Runs the end-to-end tests that match $1 on one cluster after another, one for each combination OPERATOR/KUBERNETES/POSTGRESQL of the
# other arguments. If TABLE names a page, it writes the results of each combination to a row of the table there.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$PWD/build/matrix
mkdir -p "$results"
trap 'exit 130' INT TERM
export REQUIRE_CLUSTER=1 TESTS=$1
shift
flags() {
	local versions
	IFS=/ read -ra versions <<<"$1"
	if [ "${#versions[@]}" != 3 ]; then
		echo "matrix: combination \"$1\": it must be OPERATOR/KUBERNETES/POSTGRESQL, such as 1.29.2/1.34.4/17" >&2
		return 1
	fi
	echo "-operator ${versions[0]} -kubernetes ${versions[1]} -postgres ${versions[2]}"
}
# Unknown versions must fail before the first cluster is made.
for combination in "$@"; do
	# shellcheck disable=SC2046
	chosen=$(flags "$combination") && go -C e2e run ./cmd/cluster prepare $chosen || exit
done
# ended ACTION FILE prints the number and the names of the tests (not subtests) that ended so: "0", or "2 (TestA, TestB)".
ended() {
	sed -n "/\"Action\":\"$1\"/ s/.*\"Test\":\"\([^\"\/]*\)\".*/\1/p" "$2" | sort |
		awk '{ names = names (NR > 1 ? ", " : " (") "`" $0 "`" } END { print NR names (NR ? ")" : "") }'
}
# record VERSIONS ROW replaces the row of the versions, or adds it after the last one.
record() {
	awk -v versions="$1" -v row="$2" '
		/^<!-- matrix -->$/ { table = 1 }
		table && index($0, versions) == 1 { $0 = row; done = 1 }
		/^<!-- \/matrix -->$/ { if (!done) print row; table = 0 }
		{ print }' "$TABLE" >"$results/page" && cat "$results/page" >"$TABLE"
}
# What was tested: rows that are not run keep an older commit.
commit=$(git rev-parse --short=7 HEAD)
git diff --quiet HEAD -- . ':!docs' || commit="$commit, changed"
status=0
for combination in "$@"; do
	log=$results/${combination//\//-}
	: >"$log.json"
	code=0
	env -u KUBECONFIG CLUSTERFLAGS="$(flags "$combination")" EVENTS="$log.json" e2e/on-cluster.sh sh -c \
		'go -C e2e tool gotestsum --format standard-verbose --jsonfile "$EVENTS" --raw-command -- \
		go test -exec "$INSIDE" -count=1 -timeout 90m -parallel 3 -json -run "$TESTS" ./tests/...' >"$log.log" 2>&1 || code=$?
	passed=$(ended pass "$log.json") failed=$(ended fail "$log.json") skipped=$(ended skip "$log.json")
	result="${passed%% *} passed"
	[ "$failed" = 0 ] || result="$result, failed: $failed"
	[ "$skipped" = 0 ] || result="$result, skipped: $skipped"
	if [ "$code" != 0 ]; then
		status=1
		[ "$failed" != 0 ] || result="$result, not run to the end"
	fi
	versions="| ${combination//\// | } |"
	row="$versions $commit | $(date -u +%F) | $result |"
	echo "$row"
	# After every cluster: the next one may never end.
	[ -z "${TABLE:-}" ] || record "$versions" "$row"
done
exit "$status"
