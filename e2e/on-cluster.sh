#!/usr/bin/env bash
# Runs a command on a cluster with the plugin: on that of KUBECONFIG, if it is set, with images of TAG that the cluster
# has or can pull, and otherwise on a cluster that is made here for the command, with the versions of CLUSTERFLAGS, and
# removed afterwards. BESIDE names networks, each of which gets another such cluster. The command compiles outside the
# networks, which have no route out, and runs what it has compiled inside, by INSIDE. The cluster has two nodes if RUN
# selects a test that needs two.
set -euo pipefail
cd "$(dirname "$0")/.."
export TAG=${TAG:-dev} REGISTRY=${REGISTRY:-localhost}

if [ -n "${KUBECONFIG:-}" ]; then
	echo "using the cluster of KUBECONFIG=$KUBECONFIG" >&2
	unset BESIDE
	export INSIDE=
	go -C e2e run ./cmd/manifest -tag "$TAG" -registry "$REGISTRY"
	e2e/install.sh
	exec "$@"
fi

mkdir -p build
go -C e2e build -o ../build/cluster ./cmd/cluster
cluster() { (cd e2e && ../build/cluster "$@"); }
# beside COMMAND runs the command for the cluster of every network in BESIDE, all at the same time.
beside() {
	local processes=() network process failed=0
	for network in ${BESIDE:-}; do
		(export SCALE_TO_ZERO_NETWORK=$network && "$@") &
		processes+=($!)
	done
	for process in "${processes[@]}"; do wait "$process" || failed=1; done
	return "$failed"
}
brings_up() {
	local nodes=()
	if [ -n "${RUN:-}" ] && sed -n 's/^func \(TestNodes_[^(]*\)(.*/\1/p' e2e/tests/*_test.go | grep -P "${RUN%%/*}" >/dev/null; then
		nodes=(-nodes 2 -ip-family ipv4)
	fi
	cluster up ${CLUSTERFLAGS:-} "${nodes[@]}"
}
# The cluster comes up while the images are built.
brings_up &
up=$! others=
trap 'set +e; if wait "$up"; then [ -z "$others" ] || wait "$others"; beside cluster down; cluster down; fi' EXIT
trap 'exit 130' INT TERM
go -C e2e run ./cmd/images -tag "$TAG" -registry "$REGISTRY"
go -C e2e run ./cmd/manifest -tag "$TAG" -registry "$REGISTRY"
wait "$up"
# What clusters are made of has been built now.
beside brings_up &
others=$!
KUBECONFIG=$(cluster kubeconfig) POSTGRES_IMAGE=$(cluster postgres-image)
# The images of PostgreSQL have PgBouncer too; that of 15 has one that is older than the operator needs.
pgbouncer() {
	case $POSTGRES_IMAGE in
	*:15.*) cluster postgres-image 17 ;;
	*) echo "$POSTGRES_IMAGE" ;;
	esac
}
PGBOUNCER_IMAGE=$(pgbouncer)
export KUBECONFIG POSTGRES_IMAGE PGBOUNCER_IMAGE
# Everything else is made when it is first asked for.
export PROVIDE=$PWD/e2e/provide.sh OUTSIDE=/proc/$$/ns/net INSIDE="$PWD/build/cluster exec"
install() {
	pgbouncer >/dev/null
	cluster load ../build/plugin.tar ../build/sidecar.tar
	cluster exec ./install.sh
}
install
wait "$others"
beside install
"$@"
