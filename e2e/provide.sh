#!/usr/bin/env bash
# Prints the value of a variable that a test or a benchmark needs. What the variable names is made when it is first asked for,
# and loaded into the cluster of SCALE_TO_ZERO_NETWORK that on-cluster.sh has made. Several networks ask at the same time, and none
# waits for what another variable names, which may take minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
exec 9>"build/$1.lock"
flock 9
cluster() { (cd e2e && ../build/cluster "$@"); }
images() { go -C e2e run ./cmd/images -registry "$REGISTRY" "$@" >&2; }
case $1 in
DRIVERS_IMAGE | CERT_MANAGER_IMAGE | CERT_MANAGER_CHART | KUSTOMIZE_CONTROLLER_IMAGE | KUSTOMIZE_CONTROLLER_CRD | PROMETHEUS | ALERTMANAGER)
	command=${1,,}
	cluster "${command//_/-}"
	;;
NEIGHBOUR_IMAGE)
	images -tag "$TAG" -output ../build/neighbour -neighbour
	cluster load ../build/neighbour/neighbour.tar
	echo "$REGISTRY/cnpg-i-scale-to-zero-neighbour:$TAG"
	;;
NEXT_TAG) # the same sources, whose programs say another version
	images -tag "$TAG-next" -output ../build/next
	cluster load ../build/next/plugin.tar ../build/next/sidecar.tar
	echo "$TAG-next"
	;;
NEXT_POSTGRES_IMAGE) # for a new name of the same image the operator replaces the instances, as in a minor upgrade
	cluster tag "$POSTGRES_IMAGE" "$POSTGRES_IMAGE-1"
	echo "$POSTGRES_IMAGE-1"
	;;
NEXT_MAJOR_POSTGRES_IMAGE) # the matrix has no newer one than 18
	major=${POSTGRES_IMAGE##*:}
	cluster postgres-image 18 "${major%%.*}"
	;;
*)
	echo "provide.sh: cannot make $1" >&2
	exit 1
	;;
esac
