package monitor

import "time"

// sampleApart is the minimum interval between two samples requested by events.
const sampleApart = time.Second

// SampleSoon requests a sample as soon as sampleApart permits.
func (m *Monitor) SampleSoon() {
	m.sampleAt = earlier(m.sampleAt, later(time.Now(), m.began.Add(sampleApart)))
}

// NextSample returns when the monitor itself needs a sample; zero for never.
func (m *Monitor) NextSample() time.Time {
	at := m.sampleAt
	if m.sockets.paused {
		at = earlier(at, m.sockets.resume)
	}
	if m.began.Before(m.settings.QuietUntil) { // from then on sessions are kept open again
		at = earlier(at, m.settings.QuietUntil)
	}
	return at
}

// NextProbe returns when the server must be asked whether it is shutting down; zero while no session is open.
func (m *Monitor) NextProbe() time.Time {
	if !m.held() {
		return time.Time{}
	}
	return m.prober.at.Add(probeEvery)
}

// earlier returns the earlier of two times; zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
