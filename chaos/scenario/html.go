package scenario

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
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

// A stroke is an event, where the plots have its time.
type stroke struct {
	X        float64
	At, What string
}

// WriteHTML writes the report as a page with plots.
func (r *Report) WriteHTML(w io.Writer) error {
	plots := []plot{
		r.plot("files read, in each 0.2 s", "%.0f", false, func(s *Sample) float64 { return float64(s.Reads) }),
		r.plot("reads that failed", "%.0f", true, func(s *Sample) float64 { return float64(s.Errors) }),
		r.plot("slowest read, ms", "%.0f", false, func(s *Sample) float64 { return float64(s.Slowest.Milliseconds()) }),
		r.plot("requests at the registry, refused ones too", "%.0f", false, func(s *Sample) float64 { return float64(s.Requests) }),
		r.plot("KiB from the registry", "%.0f", false, func(s *Sample) float64 { return float64(s.Bytes) / 1024 }),
	}
	strokes := make([]stroke, len(r.Events))
	for i, e := range r.Events {
		strokes[i] = stroke{X: r.x(e.At), At: fmt.Sprintf("%.1f", e.At.Seconds()), What: e.What}
	}
	return page.Execute(w, struct {
		*Report
		Passed        bool
		Seconds       string
		Plots         []plot
		Strokes       []stroke
		Width, Height int
	}{r, r.OK(), fmt.Sprintf("%.1f", r.Took.Seconds()), plots, strokes, plotWidth, plotHeight})
}

// x returns where plots have a time.
func (r *Report) x(at time.Duration) float64 {
	return float64(at) / float64(max(1, time.Duration(len(r.Samples))*sampleLength)) * plotWidth
}

// plot makes a plot of what f says of the samples.
func (r *Report) plot(title, format string, bad bool, f func(*Sample) float64) plot {
	p := plot{Title: title, Width: plotWidth, Height: plotHeight, Bad: bad}
	most := 0.0
	for i := range r.Samples {
		most = max(most, f(&r.Samples[i]))
	}
	p.Max = strings.TrimSpace(fmt.Sprintf(format, most))
	width := plotWidth / float64(max(1, len(r.Samples)))
	for i := range r.Samples {
		v := f(&r.Samples[i])
		if v == 0 {
			continue
		}
		h := v / most * plotHeight
		p.Bars = append(p.Bars, bar{X: float64(i) * width, Y: plotHeight - h, W: width, H: h, Text: fmt.Sprintf(format, v)})
	}
	return p
}
