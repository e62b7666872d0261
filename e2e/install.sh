#!/usr/bin/env bash
# Installs build/install.yaml on the cluster that KUBECONFIG names and waits until the plugin serves.
set -euo pipefail
cd "$(dirname "$0")/.."
kubectl() { if type -P kubectl >/dev/null; then command kubectl "$@"; else go -C e2e run ./cmd/cluster kubectl "$@"; fi; }
# The tests change the plugin and put it back, which makes them owners of what they changed.
kubectl apply --server-side --force-conflicts -f "$PWD/build/install.yaml"
kubectl -n cnpg-system rollout status deployment/scale-to-zero --timeout=120s
