package estimate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/model"

	"github.com/cnpg-i/scale-to-zero/sidecar/activity"
	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Cluster is a cluster of so many instances.
type Cluster struct {
	Namespace, Name string
	Instances       int
}

// User is a user of a cluster, with the name of an application, which may be empty.
type User struct {
	Name        string `json:"user"`
	Application string `json:"application"`
}

// usersAtMost bounds the users of a cluster that are asked for: the applications' names may be without number.
const usersAtMost = 3

// busy is how many transactions a minute of one database show that it is used. Autovacuum and the exporter make some in
// a database that nobody uses.
const busy = 60

// place identifies a cluster in the answers.
type place struct{ namespace, cluster model.LabelValue }

func placeOf(metric model.Metric) place { return place{metric["namespace"], metric["cluster"]} }

func places(clusters []Cluster) map[place]int {
	places := make(map[place]int, len(clusters))
	for i, c := range clusters {
		places[place{model.LabelValue(c.Namespace), model.LabelValue(c.Name)}] = i
	}
	return places
}

// Histories returns how the clusters were used, in their order.
func (s *Server) Histories(ctx context.Context, clusters []Cluster, from, to time.Time) ([]History, error) {
	histories, at := make([]History, len(clusters)), places(clusters)
	for i := range histories {
		histories[i] = History{step: Step, states: make([]state, to.Sub(from)/Step+1)}
	}
	err := each(ctx, clusters, from, to, func(ctx context.Context, part []Cluster, begin, end time.Time) error {
		asked := places(part)
		mark := func(expression string, stateOf func(Cluster, model.SampleValue) state) error {
			answer, err := s.samples(ctx, expression, begin, end)
			if err != nil {
				return err
			}
			for _, series := range answer {
				if _, ok := asked[placeOf(series.Metric)]; !ok {
					continue // of a namespace and a name that do not belong together
				}
				cluster := at[placeOf(series.Metric)]
				for _, sample := range series.Values {
					i := sample.Timestamp.Time().Sub(from) / Step
					seen := &histories[cluster].states[i]
					*seen = max(*seen, stateOf(clusters[cluster], sample.Value))
				}
			}
			return nil
		}
		selector := s.selector(part)
		if err := mark(reporting(selector), func(c Cluster, instances model.SampleValue) state {
			if int(instances) < c.Instances { // the sessions of the others are not known
				return unknown
			}
			return idle
		}); err != nil {
			return err
		}
		return mark(s.used(selector, part), func(Cluster, model.SampleValue) state { return inUse })
	})
	return histories, err
}

// Users returns who used the clusters for the most samples, in the clusters' order.
func (s *Server) Users(ctx context.Context, clusters []Cluster, from, to time.Time) ([][]User, error) {
	counts, at, mutex := make([]map[User]float64, len(clusters)), places(clusters), sync.Mutex{}
	err := each(ctx, clusters, from, to, func(ctx context.Context, part []Cluster, begin, end time.Time) error {
		answer, err := s.values(ctx, s.users(s.selector(part), part, end.Sub(begin)+Step), end)
		if err != nil {
			return err
		}
		mutex.Lock()
		defer mutex.Unlock()
		asked := places(part)
		for _, sample := range answer {
			if _, ok := asked[placeOf(sample.Metric)]; !ok {
				continue
			}
			cluster := at[placeOf(sample.Metric)]
			if counts[cluster] == nil {
				counts[cluster] = map[User]float64{}
			}
			user := User{string(sample.Metric["usename"]), string(sample.Metric["application_name"])}
			counts[cluster][user] += float64(sample.Value)
		}
		return nil
	})
	users := make([][]User, len(clusters))
	for i, count := range counts {
		users[i] = slices.SortedFunc(maps.Keys(count), func(a, b User) int {
			return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a.Name, b.Name),
				cmp.Compare(a.Application, b.Application))
		})
		users[i] = users[i][:min(len(users[i]), usersAtMost)]
	}
	return users, err
}

// selector selects the instances of the clusters, whose pods have the cluster's name and a number. It also selects
// clusters of the same names in the other ones' namespaces.
func (s *Server) selector(clusters []Cluster) string {
	namespaces, names := map[string]bool{}, map[string]bool{}
	for _, c := range clusters {
		namespaces[regexp.QuoteMeta(c.Namespace)], names[regexp.QuoteMeta(c.Name)] = true, true
	}
	return fmt.Sprintf("namespace=~%q,pod=~%q%s", alternatives(namespaces), "("+alternatives(names)+")-[0-9]+", s.match)
}

func alternatives(names map[string]bool) string {
	return strings.Join(slices.Sorted(maps.Keys(names)), "|")
}

// byCluster aggregates by cluster, whose name the exporter's queries do not tell, and by what else is given.
func byCluster(aggregate, by, expression string) string {
	return fmt.Sprintf(`%s by (namespace, cluster%s) (label_replace(%s, "cluster", "$1", "pod", "(.+)-[0-9]+"))`,
		aggregate, by, expression)
}

// reporting counts the instances whose sessions are known. The exporter always sees at least its own one.
func reporting(selector string) string {
	return byCluster("count", "", fmt.Sprintf("group by (namespace, pod) (cnpg_backends_total{%s})", selector))
}

// used returns the expression with a series for each cluster in use: a client's session is open, or rows were written
// or many transactions committed after the previous sample, by sessions that no sample shows.
func (s *Server) used(selector string, clusters []Cluster) string {
	signs := []string{s.clients(selector, clusters, "%s")}
	since := func(metric, least string) {
		counter := fmt.Sprintf(`cnpg_pg_stat_database_%s{%s,datname!=""}`, metric, selector)
		signs = append(signs, fmt.Sprintf("%s - %s offset %s > %s", counter, counter, model.Duration(Step), least))
	}
	since("tup_inserted", "0")
	since("tup_updated", "0")
	since("tup_deleted", "0")
	since("xact_commit", fmt.Sprint(busy))
	return byCluster("count", "", "group by (namespace, pod) ("+strings.Join(signs, " or ")+")")
}

// users returns the expression for the users that most samples show, with the number of these samples.
func (s *Server) users(selector string, clusters []Cluster, span time.Duration) string {
	seen := s.clients(selector, clusters, fmt.Sprintf("count_over_time(%%s[%s])", model.Duration(span)))
	return fmt.Sprintf("topk by (namespace, cluster) (%d, %s)", usersAtMost,
		byCluster("max", ", usename, application_name", seen))
}

// clients returns the expression for the sessions that [activity.Classify] takes for clients, as far as the metrics
// show it: they have no addresses, so a client that uses the names of CloudNativePG's own sessions is left out.
// function is applied to each selector.
func (s *Server) clients(selector string, clusters []Cluster, function string) string {
	var own []string
	except := func(format string, arguments ...any) {
		own = append(own, fmt.Sprintf(function, fmt.Sprintf("cnpg_backends_total{"+format+"}", arguments...)))
	}
	for _, user := range slices.Sorted(maps.Keys(activity.LocalInfrastructure)) {
		applications := append([]string{contract.ListeningApplicationName}, activity.LocalInfrastructure[user]...)
		except("%s,usename=%q,application_name=~%q", selector, user, strings.Join(applications, "|"))
	}
	except("%s,usename=%q,datname=\"postgres\"", selector, activity.PoolerUser)
	for _, c := range clusters {
		instances := regexp.QuoteMeta(c.Name) + "-[0-9]+"
		except("namespace=%q,pod=~%q%s,usename=%q,application_name=~%q", c.Namespace, instances, s.match,
			activity.StandbyUser, instances+"("+activity.JoinSuffix+")?")
	}
	return fmt.Sprintf("(%s unless (%s))", fmt.Sprintf(function, "cnpg_backends_total{"+selector+"}"),
		strings.Join(own, " or "))
}
