package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
)

const (
	// explainEvery is the interval of --watch.
	explainEvery = 2 * time.Second
	// workerTimeout bounds the request to the worker, which runs in the same container.
	workerTimeout = 2 * time.Second
)

// explainer holds the flags of explain.
type explainer struct {
	dsn, mode, ignore string
	watch, json       bool
}

// explainCommand explains why the cluster is awake. In the sidecar's container it uses the rules and the decision of
// the worker; with --dsn it judges any server by the rules given as flags.
func explainCommand(ctx context.Context, arguments []string, lookup func(string) string, stdout, stderr io.Writer) int {
	var e explainer
	flags := flag.NewFlagSet("explain", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&e.dsn, "dsn", "",
		"a connection string or URL of any PostgreSQL server; without it: the server of this pod")
	flags.StringVar(&e.mode, "activity", contract.ActivityConnections, "with --dsn: what counts, connections or queries")
	flags.StringVar(&e.ignore, "ignore", "", "with --dsn: sessions that never count, as in the annotation")
	flags.BoolVar(&e.watch, "watch", false, "explain again every two seconds")
	flags.BoolVar(&e.json, "json", false, "write JSON")
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() != 0 {
		_, _ = fmt.Fprintf(stderr, "sidecar: explain takes flags only, not %q\n", flags.Arg(0))
		return 2
	}
	for {
		if err := e.once(ctx, lookup, stdout); err != nil {
			_, _ = fmt.Fprintln(stderr, "sidecar:", err)
			if !e.watch {
				return 1
			}
		}
		if !e.watch {
			return 0
		}
		if !process.Pause(ctx, explainEvery) {
			return 0
		}
	}
}

// once samples and explains.
func (e explainer) once(ctx context.Context, lookup func(string) string, stdout io.Writer) error {
	sample, rules, worker, err := e.source(ctx, lookup)
	if err != nil {
		return err
	}
	taken, sessions := postgres.Sample{Ended: time.Now()}, []activity.Session(nil)
	if worker == nil || worker.Reason != string(idle.ReasonDozing) { // otherwise PostgreSQL is stopped
		if taken, sessions, err = sample(ctx, rules); err != nil {
			return err
		}
	}
	described := describe(taken.Ended, taken.Tally, taken.Blockers, sessions, rules, worker)
	if e.json {
		return described.writeJSON(stdout)
	}
	return described.writeText(stdout)
}

// sampler samples a server.
type sampler func(context.Context, activity.Rules) (postgres.Sample, []activity.Session, error)

// source returns the function that samples, and the rules to judge by.
func (e explainer) source(
	ctx context.Context, lookup func(string) string,
) (sampler, activity.Rules, *contract.Report, error) {
	if e.dsn != "" {
		rules, err := rulesOf(contract.ReportedRules{Activity: e.mode, Ignore: e.ignore})
		return func(ctx context.Context, rules activity.Rules) (postgres.Sample, []activity.Session, error) {
			return postgres.ExamineDSN(ctx, e.dsn, rules)
		}, rules, nil, err
	}
	s, err := readSettings(lookup)
	if err != nil {
		return nil, activity.Rules{}, nil, fmt.Errorf("this is not the sidecar's container, and --dsn is not given: %w", err)
	}
	worker, err := askWorker(ctx, contract.SidecarPort)
	if err != nil {
		return nil, activity.Rules{}, nil, err
	}
	rules, err := rulesOf(worker.Rules)
	if err != nil { // the worker reports this too, and the feature is off
		rules = activity.Rules{Instances: worker.Rules.Instances, Addresses: worker.Rules.Addresses}
	}
	return postgres.NewServer(s.socketDirectory, s.databasePort, nil).Examine, rules, &worker, nil
}

// rulesOf parses the rules as annotations are parsed.
func rulesOf(reported contract.ReportedRules) (activity.Rules, error) {
	annotations := map[string]string{contract.AnnotationActivity: reported.Activity}
	if reported.Ignore != "" {
		annotations[contract.AnnotationIgnore] = reported.Ignore
	}
	policy, problems := idle.ParsePolicy(annotations, time.Now())
	if len(problems) != 0 {
		return activity.Rules{}, errors.New(problems[0].String())
	}
	return activity.Rules{
		Instances: reported.Instances, Addresses: reported.Addresses, Ignore: policy.Ignore, Queries: policy.Queries,
	}, nil
}

// askWorker requests the worker's newest decision.
func askWorker(ctx context.Context, port uint16) (contract.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, workerTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("http://127.0.0.1:%d%s", port, contract.PathActivity), nil)
	if err != nil {
		return contract.Report{}, fmt.Errorf("ask the worker: %w", err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return contract.Report{}, fmt.Errorf("ask the worker: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, contract.MaxReportBytes+1))
	if err != nil {
		return contract.Report{}, fmt.Errorf("ask the worker: %w", err)
	}
	return contract.DecodeReport(body)
}
