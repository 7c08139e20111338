package scenario

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"
)

// judge says what has held. late is what has not come in time, or nil.
func (p *play) judge(ctx context.Context, late error) (*Report, error) {
	e, reads := &p.spec.Expect, p.reads.all()
	all, once := p.cluster.ledger.egress(p.layers)
	r := &Report{
		Name: p.spec.Name, About: p.spec.About, Guards: p.spec.Guards,
		Took: time.Since(p.begin), Events: p.events, Samples: p.samples(reads),
		Totals: totals(reads), RegistryBytes: all, RegistryOnce: once,
	}
	if late != nil {
		r.check("each wait ends in its time", false, "%v", late)
	}
	r.check("no wrong bytes", r.Totals.Wrong == 0, "%d files were wrong", r.Totals.Wrong)
	r.check(fmt.Sprintf("errors ≤ %d", e.Errors), r.Totals.Errors <= e.Errors, "%d of %d reads and mounts failed%s", r.Totals.Errors, r.Totals.Reads, firstError(reads))
	if e.Reads > 0 {
		r.check(fmt.Sprintf("files read ≥ %d", e.Reads), r.Totals.Reads-r.Totals.Errors >= e.Reads, "%d", r.Totals.Reads-r.Totals.Errors)
	}
	if e.Slowest > 0 {
		r.check(fmt.Sprintf("each within %v", time.Duration(e.Slowest)), r.Totals.Slowest <= time.Duration(e.Slowest), "the slowest took %v", r.Totals.Slowest.Round(time.Millisecond))
	}
	if e.Egress > 0 {
		ratio := float64(all) / float64(max(once, 1))
		r.check(fmt.Sprintf("egress ≤ %g", e.Egress), ratio <= e.Egress, "the registry has sent %d bytes of layers, %d of them once: %.3f", all, once, ratio)
	}
	if e.Bounded {
		p.judgeUse(r)
	}
	for _, w := range e.Windows {
		p.judgeWindow(r, w)
	}
	if err := p.judgeNodes(ctx, r); err != nil {
		return nil, err
	}
	return r, nil
}

// firstError names a read that failed, if one has.
func firstError(reads []read) string {
	i := slices.IndexFunc(reads, func(r read) bool { return r.err != nil })
	if i < 0 {
		return ""
	}
	r := reads[i]
	return fmt.Sprintf("; the first on %s after %v: %v", r.node, r.at.Round(time.Millisecond), r.err)
}

// judgeWindow judges what has reached the registry between two marks.
func (p *play) judgeWindow(r *Report, w Window) {
	from, to := p.marks[w.From], p.marks[w.To]
	requests, sent := p.cluster.ledger.between(from, to)
	span := to - from
	if w.Requests > 0 {
		rate := float64(requests) / max(span.Seconds(), 1e-3)
		r.check(fmt.Sprintf("requests from %s to %s ≤ %g/s", w.From, w.To, w.Requests), rate <= w.Requests, "%d in %v: %.2f/s", requests, span.Round(time.Millisecond), rate)
	}
	if w.Bytes > 0 {
		r.check(fmt.Sprintf("bytes from %s to %s ≤ %d", w.From, w.To, w.Bytes), sent <= int64(w.Bytes), "%d", sent)
	}
}

// judgeNodes judges what only nodes can say.
func (p *play) judgeNodes(ctx context.Context, r *Report) error {
	e := &p.spec.Expect
	stale, rotten, evicted := 0, int64(0), int64(0)
	for _, n := range p.cluster.nodes {
		if !n.running() {
			continue
		}
		s, err := n.statsSoon(ctx)
		if err != nil {
			r.check(n.name+" answers", false, "%v", err)
			continue
		}
		rotten += s.Store.Corrupt
		evicted += s.Store.Evicted
		for _, m := range s.Mounts {
			if m.Stale {
				stale++
			}
		}
	}
	if e.Stale {
		r.check("mounts are marked as stale", stale > 0, "%d are", stale)
	}
	if e.Rotten {
		r.check("chunks that are wrong on disk are found", rotten > 0, "%d were", rotten)
	}
	if e.Evicted {
		r.check("room is made", evicted > 0, "%d chunks were evicted", evicted)
	}
	if e.Verified {
		p.judgeKept(ctx, r)
	}
	if e.Quarantine {
		return p.judgeLiar(ctx, r)
	}
	return nil
}

// judgeKept judges what the nodes have on their disks.
func (p *play) judgeKept(ctx context.Context, r *Report) {
	bad, said := 0, ""
	for _, n := range p.cluster.nodes {
		out, err := exec.CommandContext(ctx, p.cluster.binary, "verify", "--state", n.state).CombinedOutput()
		if err != nil {
			bad++
			said = fmt.Sprintf("; %s: %v: %s", n.name, err, out)
		}
	}
	r.check("what is kept is right", bad == 0, "%d nodes keep what is not%s", bad, said)
}

// judgeLiar judges what nodes have learned about the liar.
func (p *play) judgeLiar(ctx context.Context, r *Report) error {
	deceived, avoided := 0, 0
	for _, n := range p.cluster.nodes {
		if !n.running() {
			continue
		}
		state, err := n.seesLiar(ctx)
		if err != nil {
			return err
		}
		if state.deceived {
			deceived++
		}
		if state.deceived && state.avoids {
			avoided++
		}
	}
	r.check("the liar is avoided", deceived > 0 && deceived == avoided, "%d nodes got wrong chunks, %d of them avoid who sent them", deceived, avoided)
	return nil
}
