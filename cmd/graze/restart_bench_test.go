package main

import (
	stdgzip "compress/gzip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"graze/image/imagetest"
)

// restartMounts is how many mounts BenchmarkRestart has, of images with so many files.
const (
	restartMounts = 50
	restartFiles  = 10_000
)

// BenchmarkRestart kills a node with many mounts and starts it again: the time from
// the start until its socket answers, and until all mounts are served. It also tells
// how much memory the keeper has of its own.
func BenchmarkRestart(b *testing.B) {
	needTools(b, "go")
	binary, err := buildPlain()
	if err != nil {
		b.Fatal(err)
	}
	reg := startRegistry(b)
	ref := pushFile(b, reg, "many", imagetest.SmallFiles("files", restartFiles), imagetest.Gzip(stdgzip.BestSpeed))
	n := newKeptNode(b)
	n.binary = binary
	n.start(b)
	dirs := make([]string, restartMounts)
	for i := range dirs {
		dirs[i] = n.mount(b, ref)
	}
	answers, served := time.Duration(0), time.Duration(0)
	for b.Loop() {
		n.end(b, syscall.SIGKILL)
		begin := time.Now()
		n.start(b)
		answers += time.Since(begin)
		for _, dir := range dirs {
			var st unix.Statfs_t // which is asked of the node each time
			if err := unix.Statfs(dir, &st); err != nil {
				b.Fatal(err)
			}
		}
		served += time.Since(begin)
	}
	b.ReportMetric(answers.Seconds()*1000/float64(b.N), "ms-to-answer")
	b.ReportMetric(served.Seconds()*1000/float64(b.N), "ms-to-serve")
	b.ReportMetric(float64(memory(b, n.keeper(b), "RssAnon")), "keeper-anon-KiB")
	b.ReportMetric(0, "ns/op")
}

// memory returns a figure of a process's memory, in KiB.
func memory(b *testing.B, pid int, field string) int {
	b.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == field+":" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatalf("no %s of process %d", field, pid)
	return 0
}
