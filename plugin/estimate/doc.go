// Package estimate says how a cluster would have slept, from its past in a Prometheus that scrapes CloudNativePG's own
// metrics: [Server] reads how clusters were used and by whom, and [History], which is pure, computes for how long a
// cluster would have slept at a threshold and how often it would have been woken.
package estimate
