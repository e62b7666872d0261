package sleep

import (
	"fmt"
	"math/bits"

	"github.com/cnpg-i/scale-to-zero/sidecar/idle"
)

// key is a world in as few bits as tell it from every other: millions are kept.
type key [4]uint64

// packer packs fields into a key.
type packer struct {
	key  key
	used int
}

// number packs a number below a bound.
func (p *packer) number(value, bound int) {
	if value < 0 || value >= bound {
		panic(fmt.Sprintf("%d is not below %d", value, bound))
	}
	width := bits.Len(uint(bound - 1))
	if p.used%64+width > 64 {
		p.used += 64 - p.used%64
	}
	p.key[p.used/64] |= uint64(value) << (p.used % 64)
	p.used += width
}

func (p *packer) flags(values ...bool) {
	for _, value := range values {
		n := 0
		if value {
			n = 1
		}
		p.number(n, 2)
	}
}

func (p *packer) announcement(value string) {
	switch value {
	case "":
		p.number(0, 3)
	case newest:
		p.number(1, 3)
	case older:
		p.number(2, 3)
	default:
		panic(fmt.Sprintf("%q is no announcement of the model", value))
	}
}

func (p *packer) reason(value idle.Reason) {
	switch value {
	case "":
		p.number(0, 3)
	case idle.ReasonActive:
		p.number(1, 3)
	case idle.ReasonBackupRunning:
		p.number(2, 3)
	default:
		panic(fmt.Sprintf("%q is no reason of the model", value))
	}
}

func (p *packer) view(v View) {
	p.flags(!v.PrimarySince.IsZero(), v.Primary, v.Healthy, v.Manual, v.HibernationOn, v.OwnsHibernation, v.HibernationBegun)
	p.flags(v.Fenced, v.Stopped, v.DozeEnding, v.MayDoze, v.NotReady, v.ForeignMarks)
	p.announcement(v.Announced)
	p.announcement(v.Acknowledged)
	p.announcement(v.Holding)
}

func (p *packer) request(r request) {
	p.number(bits.Len32(uint32(r.action)), 32)
	p.number(int(r.progress), 3)
	p.flags(r.stale)
	p.number(int(r.result.Outcome), 4)
	p.flags(r.result.InUse)
	p.reason(r.result.Blocker)
	p.flags(r.result.View != (View{}), r.result.Announcement != "")
	if r.result.View != (View{}) {
		p.view(r.result.View)
	}
}

func (p *packer) machine(m *Machine) {
	p.number(int(m.phase), int(Restarting)+1)
	p.view(m.view)
	p.announcement(m.announcement)
	p.number(int(m.pending), int(answered)+1)
	p.flags(m.abandoned, m.expired, m.waits, m.resumeWaits, m.doze, m.unready, m.mustUnfence, m.restarted)
	p.number(int(m.withdrawal), 3)
	p.number(int(m.backoff), 3)
	p.flags(m.due)
	p.number(int(m.resume), 3)
}

func (w *world) key() key {
	p := &packer{}
	w.pack(p)
	return p.key
}

// pack packs the world.
func (w *world) pack(p *packer) {
	p.machine(&w.machine)
	p.announcement(w.announced)
	p.announcement(w.acknowledged)
	p.flags(w.primary, w.moved, w.on, w.ours, w.behind, w.primaryIdle, w.standbyIdle, w.noBackup)
	p.flags(w.unhealthy, w.expired, w.marked, w.ended, w.used)
	p.number(int(w.operator), 3)
	p.number(int(w.schedule), int(suspendedByPerson)+1)
	for _, r := range w.requests {
		p.request(r)
	}
	p.number(int(w.late), int(answered)+1)
	p.number(int(w.client), int(sampled)+1)
}
