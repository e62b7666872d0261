# Every target is described by the text behind its "##"; `make help` prints them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

TAG ?= dev
REGISTRY ?= localhost
# The releases that lint uses; the code is kept clean under them.
GOLANGCI_LINT ?= github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2
GOVULNCHECK ?= golang.org/x/vuln/cmd/govulncheck@v1.1.4
ACTIONLINT ?= github.com/rhysd/actionlint/cmd/actionlint@v1.7.9
GO_LICENSES ?= github.com/google/go-licenses@v1.6.0
FUZZTIME ?= 30s
SOAKRUN = ^Test(ReplicasKilledUnderLoad|PluginDown)$$
# Combinations OPERATOR/KUBERNETES/POSTGRESQL; none: those of e2e/matrix.
MATRIX ?=
MATRIXRUN ?= ^Test(OpenSessionKeepsAwake|ShortSessionsKeepAwake|OnlyUseCounts|ScheduledBackups|BesideAnotherPlugin|ControlChannel|SwitchoverAndFailover|WakeOnConnect|WakeThroughReplicas|ManyClientsAreOneWake|APersonsHibernation|Pooler|PluginComesAndGoes|PluginDown|UpgradeRestartsNothing|MinorUpgrade|InstancesAreLimited|OwnTokenSuffices)$$

CLUSTER = go -C e2e run ./cmd/cluster
PLUGIN_IMAGE = $(REGISTRY)/cnpg-i-scale-to-zero:$(TAG)
SIDECAR_IMAGE = $(REGISTRY)/cnpg-i-scale-to-zero-sidecar:$(TAG)

.PHONY: help
help: ## Print this list
	@grep -hE '^[a-z][a-z0-9-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## Show a cluster falling asleep and being woken (KUBECONFIG: on that cluster; else on one made here)
	@./e2e/on-cluster.sh go -C e2e run ./demo

.PHONY: test
test: unit e2e ## Run every test

.PHONY: unit
unit: ## Run the tests that need no cluster; PostgreSQL 15, 17 and 18 and an API server are real
	@roots="$$($(CLUSTER) postgres-files 15 17 18)" && kubernetes="$$($(CLUSTER) kubernetes)" && \
	REQUIRE_POSTGRES=1 TEST_POSTGRES_ROOTS="$$roots" REQUIRE_KUBERNETES=1 TEST_KUBERNETES="$$kubernetes" \
	go test -race -shuffle=on ./...
	@promtool="$$($(CLUSTER) promtool)" && \
	PROMTOOL="$$promtool" go -C e2e test -race -shuffle=on ./audit/... ./cluster/... ./images/... ./matrix/... ./install/... ./monitoring/...

.PHONY: e2e
e2e: ## Run the end-to-end tests (KUBECONFIG: on that cluster; else on one made here)
	@REQUIRE_CLUSTER=1 ./e2e/on-cluster.sh sh -c \
		'rm -rf build/e2e && mkdir -p build/e2e && \
		go -C e2e tool gotestsum --format standard-verbose -- -count=1 -timeout 60m -parallel 5 -artifacts -outputdir ../build/e2e ./tests/... && \
		go -C e2e run ./cmd/cluster audit'

.PHONY: soak
soak: ## Run the tests of high availability for as long as the README says of them
	@REQUIRE_CLUSTER=1 SOAK=1 ./e2e/on-cluster.sh go -C e2e test -count=1 -timeout 60m -v -run '$(SOAKRUN)' ./tests/...

.PHONY: e2e-matrix
e2e-matrix: ## Run the main end-to-end tests on clusters of several versions, made here in turn (MATRIX, MATRIXRUN); hours
	go -C e2e run ./cmd/matrix -combinations '$(MATRIX)' -run '$(MATRIXRUN)'

.PHONY: bench
bench: ## Measure what the sidecar and the plugin cost
	@ls -l build/plugin.tar build/sidecar.tar 2>/dev/null || true
	go test -run '^$$' -bench . -benchmem ./plugin/... ./sidecar/...
	@./e2e/on-cluster.sh go -C e2e run ./bench $(BENCHFLAGS)
	@$(MAKE) fleet

.PHONY: fleet
fleet: ## Measure the wake gateway with 10,000 sleeping clusters; needs no cluster (FLEETFLAGS)
	go -C e2e run ./bench/fleet $(FLEETFLAGS)

.PHONY: images
images: ## Write build/plugin.tar and build/sidecar.tar without Docker (TAG, REGISTRY)
	go -C e2e run ./cmd/images -tag '$(TAG)' -registry '$(REGISTRY)'

.PHONY: manifest manifests
manifest: ## Write build/install.yaml for the images of TAG
	go -C e2e run ./cmd/manifest -tag '$(TAG)' -registry '$(REGISTRY)'

manifests: manifest ## The same as manifest

.PHONY: dashboard
dashboard: ## Write the Grafana dashboard of manifests/components/monitoring
	go -C e2e run ./cmd/dashboard

.PHONY: kubectl-plugin
kubectl-plugin: ## Write build/kubectl-scale_to_zero for this machine, and what kubectl completes its arguments with
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(TAG)' -o build/kubectl-scale_to_zero ./plugin
	printf '#!/bin/sh\nexec kubectl scale_to_zero __complete "$$@"\n' >build/kubectl_complete-scale_to_zero
	chmod +x build/kubectl_complete-scale_to_zero

.PHONY: cluster-up cluster-down
cluster-up: images manifest ## Make a cluster on this machine and install the plugin on it
	$(CLUSTER) up
	$(CLUSTER) load ../build/plugin.tar ../build/sidecar.tar
	KUBECONFIG="$$($(CLUSTER) kubeconfig)" ./e2e/install.sh

cluster-down: ## Remove the cluster of cluster-up
	$(CLUSTER) down

CHECKS = format vet modules linters workflows licences vulnerabilities

.PHONY: lint $(CHECKS:%=lint-%)
lint: ## Check style, module files, workflows, licences and known vulnerabilities, and say at the end what failed
	@failed=; for check in $(CHECKS); do \
		echo "== $$check"; $(MAKE) --no-print-directory lint-$$check || failed="$$failed $$check"; \
	done; test -z "$$failed" || { echo "lint: failed:$$failed" >&2; exit 1; }

lint-format:
	test -z "$$(gofmt -l $$(git ls-files '*.go') | tee /dev/stderr)"

lint-vet:
	go vet ./... && go -C e2e vet ./...

lint-modules:
	go mod tidy -diff && go -C e2e mod tidy -diff

lint-linters:
	go run $(GOLANGCI_LINT) run ./...
	cd e2e && go run $(GOLANGCI_LINT) run ./...

lint-workflows:
	go run $(ACTIONLINT) -shellcheck= -pyflakes=

# The licences permit to ship binaries under the Apache License 2.0 as long as their notices come along.
lint-licences:
	go run $(GO_LICENSES) check --allowed_licenses=Apache-2.0,MIT,ISC,BSD-2-Clause,BSD-3-Clause ./plugin ./sidecar

lint-vulnerabilities:
	@go run $(GOVULNCHECK) $(GOVULNCHECKFLAGS) ./... || { echo "lint: the code has known vulnerabilities, or \
	their database could not be read (a copy will do: GOVULNCHECKFLAGS=-db=file:///...): see above" >&2; exit 1; }

.PHONY: fuzz
fuzz: ## Fuzz every parser and the decision (FUZZTIME each), and read ten million random histories and damaged openings
	go test ./sidecar/idle -run '^TestHistories$$' -timeout 2h -args -histories 10000000
	go test ./plugin/wake/startup -run '^TestDamagedOpenings$$' -timeout 2h -args -openings 10000000
	@for package in $$(git grep -lE '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
		for name in $$(grep -hoE '^func Fuzz[A-Za-z0-9]+' $$package/*_test.go | cut -c6-); do \
			echo "$$package $$name"; (cd $$package && go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) .) || exit 1; \
		done; done

.PHONY: clean
clean: ## Remove what was built here; the caches stay
	rm -rf build
