package scenario

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed report.html
var reportHTML string

// page is the report as one file, which needs no other.
var page = template.Must(template.New("report").Parse(reportHTML))

// The size of a plot, in pixels.
const (
	plotWidth  = 900
	plotHeight = 120
	axisHeight = 16
	plotBars   = 450 // at most
)

// A plot is a row of bars over time.
type plot struct {
	Title, Max    string
	Bars          []bar
	Width, Height int
	Bad           bool // its bars tell of something that should not be
}

// A bar is one Sample's.
type bar struct {
	X, Y, W, H float64
	Text       string
}

// A tick is a time on the axis below a plot.
type tick struct {
	X    float64
	Text string
}

// A stroke is an event, where the plots have its time.
type stroke struct {
	X        float64
	At, What string
}

// WriteHTML writes the report as a page with plots.
func (r *Report) WriteHTML(w io.Writer) error {
	samples, length := r.joined(plotBars)
	each := fmt.Sprintf(", in each %v", length)
	plots := []plot{
		newPlot(samples, "files read"+each, false, func(s *Sample) float64 { return float64(s.Reads) }),
		newPlot(samples, "reads that failed"+each, true, func(s *Sample) float64 { return float64(s.Errors) }),
		newPlot(samples, "slowest read, ms", false, func(s *Sample) float64 { return float64(s.Slowest.Milliseconds()) }),
		newPlot(samples, "requests at the registry"+each+", refused ones too", false, func(s *Sample) float64 { return float64(s.Requests) }),
		newPlot(samples, "KiB from the registry"+each, false, func(s *Sample) float64 { return float64(s.Bytes) / 1024 }),
	}
	strokes := make([]stroke, len(r.Events))
	for i, e := range r.Events {
		strokes[i] = stroke{X: r.x(e.At), At: fmt.Sprintf("%.1f", e.At.Seconds()), What: e.What}
	}
	lines := strokes
	if len(lines) > manyEvents {
		lines = nil // they would hide the plots
	}
	return page.Execute(w, struct {
		*Report
		Passed        bool
		Seconds       string
		Plots         []plot
		Strokes       []stroke
		Lines         []stroke
		Ticks         []tick
		Median, P99   time.Duration
		Slowest       time.Duration
		Width, Height int
		Below, Whole  int // where the axis has its text, and the height with it
	}{
		r, r.OK(), fmt.Sprintf("%.1f", r.Took.Seconds()), plots, strokes, lines, r.ticks(),
		r.Totals.Median.Round(time.Microsecond), r.Totals.P99.Round(time.Millisecond), r.Totals.Slowest.Round(time.Millisecond),
		plotWidth, plotHeight, plotHeight + axisHeight - 4, plotHeight + axisHeight,
	})
}

// ticks returns the times of the axis, ten to twenty-five of them.
func (r *Report) ticks() (list []tick) {
	length := time.Duration(len(r.Samples)) * sampleLength
	step := time.Second
	for _, longer := range []time.Duration{2, 5, 10, 30, 60, 120, 300, 600} {
		if length/step > 25 {
			step = longer * time.Second
		}
	}
	for at := time.Duration(0); at < length; at += step {
		list = append(list, tick{r.x(at), fmt.Sprintf("%g s", at.Seconds())})
	}
	return list
}

// x returns where plots have a time.
func (r *Report) x(at time.Duration) float64 {
	return float64(at) / float64(max(1, time.Duration(len(r.Samples))*sampleLength)) * plotWidth
}

// newPlot makes a plot of what f says of samples.
func newPlot(samples []Sample, title string, bad bool, f func(*Sample) float64) plot {
	p := plot{Title: title, Width: plotWidth, Height: plotHeight, Bad: bad}
	most := 0.0
	for i := range samples {
		most = max(most, f(&samples[i]))
	}
	p.Max = fmt.Sprintf("%.0f", most)
	width := plotWidth / float64(max(1, len(samples)))
	for i := range samples {
		v := f(&samples[i])
		if v == 0 {
			continue
		}
		h := v / most * plotHeight
		p.Bars = append(p.Bars, bar{X: float64(i) * width, Y: plotHeight - h, W: width, H: h, Text: fmt.Sprintf("%.0f", v)})
	}
	return p
}
