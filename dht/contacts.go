package dht

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
)

const (
	maxContacts    = 4096
	maxContactFile = 1 << 20
)

// contacts returns the addresses that the configuration names, as ip:port, each
// once. What can't be read or resolved is left out and told by the error.
func (c *Config) contacts(ctx context.Context) ([]string, error) {
	names := c.Join
	var errs []error
	if c.JoinFile != "" {
		more, err := readContacts(c.JoinFile)
		if err != nil {
			errs = append(errs, err)
		}
		names = append(names[:len(names):len(names)], more...)
	}
	var addrs []string
	seen := make(map[string]bool)
	for _, name := range names {
		found, err := c.resolve(ctx, name)
		if err != nil {
			errs = append(errs, err)
		}
		for _, a := range found {
			if !seen[a] && len(seen) < maxContacts {
				seen[a] = true
				addrs = append(addrs, a)
			}
		}
	}
	return addrs, errors.Join(errs...)
}

// resolve returns the addresses of host or host:port; the port is by default
// that which this node binds.
func (c *Config) resolve(ctx context.Context, name string) ([]string, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		_, port, _ = net.SplitHostPort(c.Bind)
		host = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	}
	if err := checkHostPort("contact", net.JoinHostPort(host, port)); err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []string{net.JoinHostPort(ip.String(), port)}, nil
	}
	ips, err := c.Lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("contact %.80q: %w", name, err)
	}
	var addrs []string
	for _, ip := range ips[:min(len(ips), maxContacts)] {
		addrs = append(addrs, net.JoinHostPort(ip.Unmap().String(), port))
	}
	return addrs, nil
}

// readContacts reads a file that has one contact a line. Empty lines, and what
// follows a '#', mean nothing.
func readContacts(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("contacts: %w", err)
	}
	defer f.Close()
	var names []string
	lines := bufio.NewScanner(io.LimitReader(f, maxContactFile))
	for lines.Scan() && len(names) < maxContacts {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text != "" {
			names = append(names, text)
		}
	}
	if err := lines.Err(); err != nil {
		return names, fmt.Errorf("contacts in %s: %w", path, err)
	}
	return names, nil
}
