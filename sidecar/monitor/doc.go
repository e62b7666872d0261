// Package monitor watches one PostgreSQL instance: the kernel's socket events, samples of the sessions, the control
// channel, and whether the server is shutting down. It owns everything needed for that and returns observations.
//
// One goroutine drives it: it waits for [Monitor.Events] and for the times that [Monitor.NextSample] and
// [Monitor.NextProbe] return. [Monitor.Drain] and [Monitor.CloseSessions] may be called from any goroutine.
//
// # Guarantees
//
// No error is fatal: a failure makes the activity unknown, and unknown never counts as idle.
//
// An open session delays a smart shutdown by up to 180 seconds. Sessions are therefore held only where the settings
// allow it, the server is probed meanwhile, and they are closed at once when it rejects new sessions.
//
// A session of the gateway's counts as that of the client that the gateway has announced for it ([ClientAddrs]). A
// process that is started again resumes the idle clock of the earlier one only if it is proven that nothing happened
// meanwhile ([CheckpointFile]).
//
// A session that ends while a sample is taken may be in neither the sample nor the list of open sockets: over TLS its
// socket is reset when PostgreSQL answers the end of the session, and reported only when the process has ended. The
// report then restarts the idle clock, and ends an attempt to sleep that has begun meanwhile.
//
// # Where to start reading
//
// [Monitor.Sample] and [Monitor.Handle] return what a sample and an event have shown.
package monitor
