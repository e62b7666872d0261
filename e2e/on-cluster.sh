#!/usr/bin/env bash
# Runs a command on a cluster with the plugin. With KUBECONFIG set that cluster is used as it is, with images of TAG that it
# can pull or has; otherwise one is made here for the command and removed afterwards. CLUSTERFLAGS choose what it is made of.
# BESIDE has the names of networks, in each of which another such cluster is made.
set -euo pipefail
cd "$(dirname "$0")/.."
export TAG=${TAG:-dev} REGISTRY=${REGISTRY:-localhost}
plugin=$REGISTRY/cnpg-i-scale-to-zero sidecar=$plugin-sidecar neighbour=$plugin-neighbour

if [ -n "${KUBECONFIG:-}" ]; then
	echo "using the cluster of KUBECONFIG=$KUBECONFIG" >&2
	unset BESIDE
	go -C e2e run ./cmd/manifest -tag "$TAG" -registry "$REGISTRY"
	e2e/install.sh
	exec "$@"
fi

mkdir -p build
go -C e2e build -o ../build/cluster ./cmd/cluster
cluster() { (cd e2e && ../build/cluster "$@"); }
# What beside calls for the network NETWORK concerns the cluster there.
beside() {
	local processes=() network process failed=0
	for network in ${BESIDE:-}; do
		(export SCALE_TO_ZERO_NETWORK=$network && "$@") &
		processes+=($!)
	done
	for process in "${processes[@]}"; do wait "$process" || failed=1; done
	return "$failed"
}
# The cluster comes up while the images are built.
cluster up ${CLUSTERFLAGS:-} &
up=$!
trap 'if wait "$up"; then beside cluster down; cluster down; fi' EXIT
trap 'exit 130' INT TERM
go -C e2e run ./cmd/images -tag "$TAG" -registry "$REGISTRY" -neighbour
# The same sources, whose programs say another version: what the tests of upgrades go to.
go -C e2e run ./cmd/images -tag "$TAG-next" -registry "$REGISTRY" -output ../build/next
go -C e2e run ./cmd/manifest -tag "$TAG" -registry "$REGISTRY"
wait "$up"
# What clusters are made of has been built now.
beside cluster up ${CLUSTERFLAGS:-} &
others=$!
export NEIGHBOUR_IMAGE=$neighbour:$TAG
export NEXT_PLUGIN_IMAGE=$plugin:$TAG-next NEXT_SIDECAR_IMAGE=$sidecar:$TAG-next NEXT_VERSION=$TAG-next
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
DRIVERS_IMAGE=$(cluster drivers-image)
PROMETHEUS=$(cluster prometheus)
ALERTMANAGER=$(cluster alertmanager)
CERT_MANAGER_IMAGE=$(cluster cert-manager-image)
CERT_MANAGER_CHART=$(cluster cert-manager-chart)
KUSTOMIZE_CONTROLLER_IMAGE=$(cluster kustomize-controller-image)
KUSTOMIZE_CONTROLLER_CRD=$(cluster kustomize-controller-crd)
export DRIVERS_IMAGE PROMETHEUS ALERTMANAGER CERT_MANAGER_IMAGE CERT_MANAGER_CHART KUSTOMIZE_CONTROLLER_IMAGE KUSTOMIZE_CONTROLLER_CRD
# Another name for the same files is as good as a minor upgrade: the operator replaces the instances.
export NEXT_POSTGRES_IMAGE=$POSTGRES_IMAGE-1
provide() {
	cluster load ../build/plugin.tar ../build/sidecar.tar ../build/neighbour.tar ../build/next/plugin.tar ../build/next/sidecar.tar
	cluster tag "$POSTGRES_IMAGE" "$NEXT_POSTGRES_IMAGE"
	cluster exec ./install.sh
}
# The images that the first one has made are only loaded by the others.
provide_others() {
	{ pgbouncer && cluster drivers-image && cluster cert-manager-image; } >/dev/null
	provide
}
provide
wait "$others"
beside provide_others
build/cluster exec "$@"
