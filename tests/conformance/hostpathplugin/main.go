// Command hostpathplugin stands in for the proxy mode of the host path CSI driver, whose module is not published: the DRA
// tests of Kubernetes start it in a pod, so that the kubelet's connections reach a driver in the test program.
//
// Each connection to the endpoint is joined with the next one to the proxy endpoint.
package main

import (
	"flag"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"sync"
)

func main() {
	endpoint := flag.String("endpoint", "", "path of the Unix socket to serve")
	proxyEndpoint := flag.String("proxy-endpoint", "", "tcp://ADDRESS where the driver is connected")
	flag.Int("v", 0, "not used")
	flag.Parse()

	if err := os.Remove(*endpoint); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	callers, err := net.Listen("unix", *endpoint)
	if err != nil {
		log.Fatal(err)
	}
	drivers, err := net.Listen("tcp", strings.TrimPrefix(*proxyEndpoint, "tcp://"))
	if err != nil {
		log.Fatal(err)
	}
	for {
		caller, err := callers.Accept()
		if err != nil {
			log.Fatal(err)
		}
		driver, err := drivers.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go join(caller, driver)
	}
}

// join copies both ways until either side ends.
func join(a, b net.Conn) {
	var once sync.Once
	end := func() { a.Close(); b.Close() }
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			defer once.Do(end)
			io.Copy(pair[0], pair[1])
		}()
	}
}
