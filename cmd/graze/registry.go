package main

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"graze/registry"
)

// newRegistry returns the command that runs the embedded registry.
func newRegistry(o *options) *cobra.Command {
	listen, root := "", ""
	cfg := registry.Config{}
	c := &cobra.Command{
		Use:   "registry",
		Short: "Run a small OCI registry, for demos, tests and single machines",
		Long: `Registry serves the OCI distribution API from a folder: images can be pushed by any
client, and read by any kind of Range request. It knows no users: whoever reaches
the address can read and write.`,
		Example: `  graze registry --listen 127.0.0.1:5000 --root /data/registry
  skopeo copy --dest-tls-verify=false oci:image docker://127.0.0.1:5000/image:1`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			cfg.Log = o.logger()
			reg, err := registry.New(root, cfg)
			if err != nil {
				return err
			}
			defer func() {
				if closeErr := reg.Close(); err == nil {
					err = closeErr
				}
			}()
			var lc net.ListenConfig
			ln, err := lc.Listen(c.Context(), "tcp", listen)
			if err != nil {
				return err
			}
			fmt.Fprintf(o.stdout, "registry: listening on %s, content in %s\n", ln.Addr(), root)
			return registry.Serve(c.Context(), ln, reg, cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:5000", "address to listen on; port 0 takes a free one")
	f.StringVar(&root, "root", "/var/lib/graze-registry", "folder that the content is kept in")
	f.StringVar(&cfg.CertFile, "tls-cert", "", "file of a certificate chain in PEM form, to speak TLS")
	f.StringVar(&cfg.KeyFile, "tls-key", "", "file of its key in PEM form")
	c.MarkFlagsRequiredTogether("tls-cert", "tls-key")
	return c
}
