#!/usr/bin/env bash
# Runs a command on a cluster of kind that has CloudNativePG and the plugin, with the images of build/plugin.tar and
# build/sidecar.tar, which have TAG. KIND is the package of kind, NODE the image of the node, OPERATOR the operator's version.
set -euo pipefail
cd "$(dirname "$0")/.."
export TAG=${TAG:-dev} REGISTRY=${REGISTRY:-localhost}
: "${KIND:?}" "${NODE:?}" "${OPERATOR:?}"
plugin=$REGISTRY/cnpg-i-scale-to-zero
kind() { go run "$KIND" "$@" --name scale-to-zero; }

# What the tests need beside the images that are tested: another plugin, and another version of ours to upgrade to.
go -C e2e run ./cmd/images -tag "$TAG" -registry "$REGISTRY" -output ../build/kind -neighbour
go -C e2e run ./cmd/images -tag "$TAG-next" -registry "$REGISTRY" -output ../build/next
KUBECONFIG=$PWD/build/kind.kubeconfig
export KUBECONFIG
kind create cluster --image "$NODE" --wait 3m
trap 'kind delete cluster' EXIT
for archive in build/plugin.tar build/sidecar.tar build/kind/neighbour.tar build/next/plugin.tar build/next/sidecar.tar; do
	kind load image-archive "$archive"
done
kubectl apply --server-side -f "https://raw.githubusercontent.com/cloudnative-pg/cloudnative-pg/release-${OPERATOR%.*}/releases/cnpg-$OPERATOR.yaml"
kubectl -n cnpg-system rollout status deployment/cnpg-controller-manager --timeout=180s
export NEIGHBOUR_IMAGE=$plugin-neighbour:$TAG
export NEXT_TAG=$TAG-next
e2e/on-cluster.sh "$@"
