# Every target is described by the text behind its "##"; `make help` prints them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

TAG ?= dev
REGISTRY ?= localhost
# Whose releases have the archives.
REPOSITORY ?= https://github.com/cnpg-i/scale-to-zero
# The releases that lint uses; the code is kept clean under them.
GOLANGCI_LINT ?= github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2
GOVULNCHECK ?= golang.org/x/vuln/cmd/govulncheck@v1.1.4
ACTIONLINT ?= github.com/rhysd/actionlint/cmd/actionlint@v1.7.9
GO_LICENSES ?= github.com/google/go-licenses@v1.6.0
GORELEASER ?= github.com/goreleaser/goreleaser/v2@v2.15.1
CYCLONEDX ?= github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0
HELM_DOCS ?= github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2
FREEZE ?= github.com/charmbracelet/freeze@v0.2.2
CRANE ?= github.com/google/go-containerregistry/cmd/crane@v0.20.6
KIND ?= sigs.k8s.io/kind@v0.31.0
# What a cluster of kind is made of.
KIND_NODE ?= kindest/node:v1.35.0@sha256:452d707d4862f52530247495d180205e029056831160e22870e37e3f6c1ac31f
KIND_OPERATOR ?= 1.30.1
FUZZTIME ?= 30s
# The tests that explore every state run in one goroutine: the race detector would find nothing, and slow them down
# sixfold.
EXPLORATION = ^TestMachine_everyReachableState
# With -trimpath, other checkouts reuse the packages that were compiled for the unit tests.
UNITFLAGS = -trimpath
SOAKRUN = ^Test(ReplicasKilledUnderLoad|PluginDown|RenewedCertificatesDropNoCall|Handover_aSessionOnAStandbyWins|Handover_aLostAnswerUndoesNothing|Rollout_refusesNobodyOfAFleet|Doze_refusesAndCutsNobody|Doze_manyAtOnce|Recall_everyShortSessionIsSeen|Recall_everySleepIsOnTime|Handover_refusesNobodyAtRandomMoments|OnlyUseCounts|TenantsStayApart|SamplesSleepAndWake|PreviewPlatform|Pools_stayConnectedAsleep)$$
# Combinations OPERATOR/KUBERNETES/POSTGRESQL: every pair of two of their versions.
MATRIX ?= 1.30.1/1.34.4/17 1.30.1/1.37.2/18 1.30.1/1.34.4/15 1.29.2/1.37.2/17 1.29.2/1.34.4/18 1.29.2/1.37.2/15
# The end-to-end tests to run, as a pattern of go test -run; empty: all, or with CORE those that do not call whole.
RUN ?=
CORE ?=
MATRIXRUN ?= ^Test(OpenSessionKeepsAwake|ShortSessionsKeepAwake|OnlyUseCounts|ScheduledBackups|BesideAnotherPlugin|ControlChannel|SwitchoverAndFailover|WakeOnConnect|WakeThroughReplicas|ManyClientsAreOneWake|APersonsHibernation|Pooler|PluginComesAndGoes|PluginDown|UpgradeRestartsNothing|MinorUpgrade|InstancesAreLimited|OwnTokenSuffices|Doze_wakesInItsPodAndHibernatesLater|Doze_refusesAndCutsNobody|Doze_leavesAPersonsFence|Doze_endsWithItsPod|Doze_aPoolerLeadsToIt)$$

CLUSTER = go -C e2e run ./cmd/cluster
PLUGIN_IMAGE = $(REGISTRY)/cnpg-i-scale-to-zero:$(TAG)
SIDECAR_IMAGE = $(REGISTRY)/cnpg-i-scale-to-zero-sidecar:$(TAG)

.PHONY: help
help: ## Print this list
	@grep -hE '^[a-z][a-z0-9-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## Show a cluster falling asleep and being woken (KUBECONFIG: on that cluster; else on one made here)
	@./e2e/on-cluster.sh sh -c 'go -C e2e run -exec "$$INSIDE" ./demo'

.PHONY: test
test: unit ## Run the unit tests and the main end-to-end tests
	@$(MAKE) --no-print-directory e2e CORE=1

.PHONY: unit
unit: ## Run the tests that need no cluster; PostgreSQL 15, 17 and 18 and an API server are real
	@roots="$$($(CLUSTER) postgres-files 15 17 18)" && kubernetes="$$($(CLUSTER) kubernetes)" && \
	export REQUIRE_POSTGRES=1 TEST_POSTGRES_ROOTS="$$roots" REQUIRE_KUBERNETES=1 TEST_KUBERNETES="$$kubernetes" && \
	promtool="$$($(CLUSTER) promtool)" && alertmanager="$$($(CLUSTER) alertmanager)" && \
	export PROMTOOL="$$promtool" ALERTMANAGER="$$alertmanager" && \
	export GOFLAGS="$$GOFLAGS $(UNITFLAGS)" && \
	go -C e2e tool gotestsum --format pkgname --raw-command -- go run ./cmd/sidebyside \
		'go -C .. test -json -timeout 30m -race -shuffle=on -skip "$(EXPLORATION)" ./...' \
		'go -C .. test -json -timeout 30m -run "$(EXPLORATION)" ./sidecar/sleep || failed=1; \
		go test -json -timeout 30m -race -shuffle=on ./audit/... ./cluster/... ./images/... ./install/... ./monitoring/... ./chart/... ./workflows/... ./scenario/... ./cmd/sidebyside || failed=1; \
		exit $$failed'

.PHONY: e2e
e2e: ## Run every end-to-end test, or those of RUN (KUBECONFIG: on that cluster; else on one made here)
	@status=0; export REQUIRE_CLUSTER=1; \
	if [ -z '$(RUN)$(CORE)'"$$KUBECONFIG" ]; then \
		SCALE_TO_ZERO_NETWORK=nodes RUN=^TestNodes_ ./e2e/on-cluster.sh ./e2e/run.sh || status=1; \
		rm -rf build/e2e-nodes && mv build/e2e build/e2e-nodes || status=1; \
	fi; \
	CORE='$(CORE)' RUN='$(RUN)' BESIDE='$(if $(RUN)$(CORE)$(filter 1 2 3,$(shell nproc)),,alone)' ./e2e/on-cluster.sh ./e2e/run.sh && exit $$status

.PHONY: soak
soak: ## Run the tests of high availability for as long as the documentation says of them, and those of rare moments again and again
	@REQUIRE_CLUSTER=1 SOAK=1 HANDOVERS=15 LOST_ANSWERS=10 RENEWALS=50 DOZES=100 SESSIONS=1000 GAPS=50 CYCLES=50 THRESHOLDS=10 RESTARTS=12 \
	./e2e/on-cluster.sh sh -c 'go -C e2e test -exec "$$INSIDE" -count=1 -timeout 10h -parallel $(if $(filter 1 2 3,$(shell nproc)),1,6) -v -run "$(SOAKRUN)" ./tests/...'

.PHONY: e2e-matrix
# Other tests than the main ones write no table.
e2e-matrix: ## Run the tests of MATRIXRUN on clusters of several versions, made here in turn, and write the table of docs/reference/compatibility.md (MATRIX, MATRIXRUN); hours
	TABLE='$(if $(filter file,$(origin MATRIXRUN)),docs/reference/compatibility.md)' ./e2e/matrix.sh '$(MATRIXRUN)' $(MATRIX)

.PHONY: e2e-kind
e2e-kind: ## Run the tests of MATRIXRUN on a cluster of kind with build/plugin.tar and build/sidecar.tar (KIND_NODE, KIND_OPERATOR)
	@KIND='$(KIND)' NODE='$(KIND_NODE)' OPERATOR='$(KIND_OPERATOR)' TAG='$(TAG)' REGISTRY='$(REGISTRY)' REQUIRE_CLUSTER=1 \
	./e2e/kind.sh go -C e2e test -count=1 -timeout 60m -parallel 5 -v -run '$(MATRIXRUN)' ./tests/...

.PHONY: bench
bench: ## Measure what the sidecar and the plugin cost
	@git log -1 --format='commit %h'; date -u +%F; uptime
	@ls -l build/plugin.tar build/sidecar.tar 2>/dev/null || true
	kubernetes="$$($(CLUSTER) kubernetes)" && TEST_KUBERNETES="$$kubernetes" go test -run '^$$' -bench . -benchmem ./plugin/... ./sidecar/... ./manifests/...
	@./e2e/on-cluster.sh sh -c 'go -C e2e run -exec "$$INSIDE" ./bench $(BENCHFLAGS)'
	@$(MAKE) fleet

.PHONY: fleet
fleet: ## Measure the wake gateway with 10,000 sleeping clusters; needs no cluster (FLEETFLAGS)
	go -C e2e run ./bench/fleet $(FLEETFLAGS)

.PHONY: images
images: ## Write build/plugin.tar and build/sidecar.tar without Docker (TAG, REGISTRY)
	go -C e2e run ./cmd/images -tag '$(TAG)' -registry '$(REGISTRY)'

.PHONY: push
push: ## Push build/plugin.oci.tar and build/sidecar.oci.tar, which CI has built, as the images of TAG, and write what they are to build/pushed
	rm -rf build/oci build/pushed
	for image in plugin=$(PLUGIN_IMAGE) sidecar=$(SIDECAR_IMAGE); do \
		mkdir -p build/oci/$${image%%=*} && tar -xf build/$${image%%=*}.oci.tar -C build/oci/$${image%%=*} && \
		go run $(CRANE) push build/oci/$${image%%=*} $${image#*=} >>build/pushed || exit 1; \
	done

.PHONY: manifest manifests
manifest: ## Write build/install.yaml for the images of TAG
	go -C e2e run ./cmd/manifest -tag '$(TAG)' -registry '$(REGISTRY)'

manifests: manifest ## The same as manifest

.PHONY: chart chart-readme
chart: ## Write build/cnpg-i-scale-to-zero-VERSION.tgz, the Helm chart for the images of TAG, a version
	go -C e2e run ./cmd/chart -tag '$(TAG)' -registry '$(REGISTRY)'

chart-readme: ## Write the README of the Helm chart from its values
	go run $(HELM_DOCS) --skip-version-footer --log-level warning -c manifests/chart

.PHONY: docs
docs: ## Write the tables of the documentation that come from the code
	go test ./docs -update
	go -C e2e test ./monitoring -run '^TestThePage' -update

.PHONY: demo-picture
demo-picture: ## Write docs/demo.svg, the timeline of make demo
	mkdir -p build
	set -o pipefail; $(MAKE) --no-print-directory demo | tee build/demo.txt
	{ echo '$$ make demo'; grep -E '^ *[0-9.]+s  ' build/demo.txt; } >build/timeline.txt
	go run $(FREEZE) build/timeline.txt --language text --font.family monospace --font.size 13 --output docs/demo.svg

.PHONY: kubectl-plugin
kubectl-plugin: ## Write build/kubectl-scale_to_zero for this machine, and what kubectl completes its arguments with
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(TAG)' -o build/kubectl-scale_to_zero ./plugin/kubectl
	cp plugin/kubectl/kubectl_complete-scale_to_zero build/

.PHONY: archives
archives: ## Write build/archives for the version TAG: kubectl scale_to_zero for every platform, SBOMs, checksums, krew's manifest (REPOSITORY)
	@[[ '$(TAG)' =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$$ ]] || \
		{ echo "archives: TAG is '$(TAG)'; it must be a semantic version after a v, such as v1.2.3 or v1.2.3-rc.1" >&2; exit 1; }
	rm -rf build/archives build/licenses
	for tool in $(GORELEASER) $(CYCLONEDX) $(GO_LICENSES); do GOBIN='$(CURDIR)/build/bin' go install $$tool || exit 1; done
	for system in darwin linux windows; do \
		GOOS=$$system build/bin/go-licenses save ./plugin/kubectl --save_path=build/licenses/$$system && \
		cp "$$(go env GOROOT)/LICENSE" build/licenses/$$system/LICENSE.go || exit 1; \
	done
	PATH="$(CURDIR)/build/bin:$$PATH" REPOSITORY='$(REPOSITORY)' TAG='$(TAG)' \
		goreleaser release --snapshot --clean --skip=publish,announce
	mkdir build/archives && cd build/goreleaser && \
		cp *.tar.gz *.zip *.cdx.json checksums.txt krew/scale-to-zero.yaml ../archives/

.PHONY: test-archives
test-archives: ## Make the archives as a release does, have krew install each, and run that of this machine
	$(MAKE) archives TAG=v0.0.1
	PATH="$(CURDIR)/build/bin:$$PATH" goreleaser check
	./e2e/archives.sh v0.0.1

.PHONY: notes
notes: ## Print what CHANGELOG.md says of the version TAG
	@awk -v heading='## [$(TAG:v%=%)]' '/^## \[/ { found = index($$0, heading) == 1; next } found && (NF || said) { print; said = said NF } \
		END { if (!said) { print "notes: CHANGELOG.md says nothing under " heading >"/dev/stderr"; exit 1 } }' CHANGELOG.md

.PHONY: cluster-up cluster-down
cluster-up: images manifest ## Make a cluster on this machine and install the plugin on it
	$(CLUSTER) up
	$(CLUSTER) load ../build/plugin.tar ../build/sidecar.tar
	$(CLUSTER) exec ./install.sh

cluster-down: ## Remove the cluster of cluster-up
	$(CLUSTER) down

CHECKS = format vet modules linters workflows chart licences vulnerabilities

.PHONY: lint lint-quick $(CHECKS:%=lint-%)
lint: ## Check style, module files, workflows, licences and known vulnerabilities, and say at the end what failed
	@failed=; for check in $(CHECKS); do \
		echo "== $$check"; $(MAKE) --no-print-directory lint-$$check || failed="$$failed $$check"; \
	done; test -z "$$failed" || { echo "lint: failed:$$failed" >&2; exit 1; }

lint-quick: lint-format lint-vet lint-modules lint-linters lint-chart ## Check style, module files and the chart

lint-format:
	test -z "$$(gofmt -l $$(git ls-files '*.go') | tee /dev/stderr)"

lint-vet:
	go vet ./... && go -C e2e vet ./...

lint-modules:
	go mod tidy -diff && go -C e2e mod tidy -diff

# What the linters keep names files of the folder in which they ran, so that those of another one cannot use it.
lint-linters: export GOLANGCI_LINT_CACHE = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/golangci-lint$(subst /,-,$(CURDIR))
lint-linters:
	go run $(GOLANGCI_LINT) run ./...
	cd e2e && go run $(GOLANGCI_LINT) run ./...

lint-workflows:
	go run $(ACTIONLINT) -shellcheck= -pyflakes=

# The README of the chart is that of its values.
lint-chart:
	go run $(HELM_DOCS) --skip-version-footer --log-level warning -c manifests/chart --dry-run | sed -e '$$a\' | diff manifests/chart/README.md -

# The licences permit to ship binaries under the Apache License 2.0 as long as their notices come along.
lint-licences:
	go run $(GO_LICENSES) check --allowed_licenses=Apache-2.0,MIT,ISC,BSD-2-Clause,BSD-3-Clause ./plugin ./plugin/kubectl ./sidecar ./sidecar/supervisor

lint-vulnerabilities:
	@go run $(GOVULNCHECK) $(GOVULNCHECKFLAGS) ./... || { echo "lint: the code has known vulnerabilities, or \
	their database could not be read (a copy will do: GOVULNCHECKFLAGS=-db=file:///...): see above" >&2; exit 1; }

.PHONY: fuzz
fuzz: ## Fuzz every parser and the decision (FUZZTIME each), and read ten million random histories and damaged startup packets
	go test ./sidecar/idle -run '^TestDecide_agreesWithAnOracleOnRandomHistories$$' -timeout 2h -args -histories 10000000 -seed $$(date +%s)
	go test ./plugin/wake/startup -run '^TestDamagedPackets$$' -timeout 2h -args -packets 10000000
	@for package in $$(git grep -lE '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
		for name in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$package/*_test.go | cut -c6-); do \
			echo "$$package $$name"; (cd $$package && go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) .) || exit 1; \
		done; done

.PHONY: clean
clean: ## Remove what was built here; the caches stay
	rm -rf build
