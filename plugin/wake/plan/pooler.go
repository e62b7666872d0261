package plan

import (
	"slices"
	"strconv"
	"time"

	"k8s.io/utils/ptr"
)

// Pooler is a Pooler of the cluster.
type Pooler struct {
	Name string
	// Instances are how many it is to have, which only this project has set if Ours.
	Instances int32
	Ours      bool
	// Mark says that this project has scaled it to zero during this sleep, and how many instances it had; empty: it has
	// not.
	Mark string
	// Useless says that PgBouncer has nothing to connect to, even if the cluster is awake.
	Useless bool
	// Services are the Services of its PgBouncer that can be routed to the gateway. LedSince is when the last Service
	// of its PgBouncer was routed to this replica; zero if one is not.
	Services []Service
	LedSince time.Time
}

// Scaling is a change of a Pooler.
type Scaling struct {
	Name string
	// Instances are how many it is to have; nil: as many as it has.
	Instances *int32
	// Mark is the mark that it is to have; nil: none.
	Mark *string
	// Why is logged when it is written.
	Why string
}

// poolersSleep reports whether the cluster's Poolers are to have no instances.
func (c Cluster) poolersSleep() bool {
	return c.Policy.PoolersSleep && c.Policy.Enabled && c.Listed && !c.Deleting && c.HibernationOn && c.OwnsHibernation
}

// sleeps reports whether the Pooler sleeps when its cluster does. One that a person has scaled to zero is left alone.
func (p Pooler) sleeps() bool { return p.Mark != "" || p.Instances > 0 && !p.Useless }

// scale scales the Poolers of a sleeping cluster to zero, once per sleep, and those of another to what they had. The
// mark stays until the cluster is awake, also where a person has scaled the Pooler meanwhile: that stands.
func (p *Plan) scale(state State, now time.Time) {
	asleep := state.Cluster.poolersSleep()
	for _, pooler := range state.Poolers {
		switch {
		case asleep && pooler.Mark == "" && pooler.sleeps():
			if state.Cluster.Obstacle() != ReasonManual { // otherwise no connection wakes it anyway
				due := pooler.LedSince.Add(time.Second + state.HandoverWait) // the API server's times have no fractions
				if pooler.LedSince.IsZero() {
					continue
				}
				if now.Before(due) {
					p.at(due)
					continue
				}
			}
			mark := strconv.Itoa(int(pooler.Instances))
			p.Scale = append(p.Scale, Scaling{
				Name: pooler.Name, Instances: ptr.To(int32(0)), Mark: &mark, Why: "a Pooler sleeps with its cluster",
			})
		case !asleep && pooler.Mark != "":
			p.Scale = append(p.Scale, pooler.restored())
		}
	}
}

// restored is how the Pooler gets the instances that it had. If a person has scaled it meanwhile, only the mark is
// removed.
func (p Pooler) restored() Scaling {
	if p.Instances != 0 || !p.Ours {
		return Scaling{Name: p.Name, Why: "a Pooler that another manager has scaled is left as it is"}
	}
	had, err := strconv.ParseInt(p.Mark, 10, 32)
	if err != nil || had < 1 { // a person has changed the mark
		had = 1
	}
	return Scaling{Name: p.Name, Instances: ptr.To(int32(had)), Why: "a Pooler has its instances again"}
}

// leadPoolers has the Services of Poolers lead to the gateway while those have no instances, and after that until they
// have a ready one. A doze leaves Poolers alone.
func (p *Plan) leadPoolers(state State, now time.Time) {
	asleep := state.Cluster.HibernationOn
	if asleep && p.Reason != ReasonAsleep && p.Reason != ReasonMaintenance {
		return
	}
	for _, pooler := range state.Poolers {
		for _, service := range pooler.Services {
			stands := service.Led && !service.Ready
			switch {
			case asleep && (stands || pooler.sleeps() && state.Cluster.poolersSleep()):
				p.Lead = append(slices.Clip(p.Lead), service.UID)
			case !asleep && stands && now.Before(p.Memory.wakingUntil):
				p.Lead = append(slices.Clip(p.Lead), service.UID)
				if p.Reason == ReasonAwake {
					p.Reason = ReasonWaking
				}
				p.at(p.Memory.wakingUntil)
			}
		}
	}
}

// poolerServices are the Services of all Poolers.
func (s State) poolerServices() []Service {
	var services []Service
	for _, pooler := range s.Poolers {
		services = append(services, pooler.Services...)
	}
	return services
}
