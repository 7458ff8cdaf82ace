package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

type failure struct {
	code codes.Code
	left int
}

// faults are what calls meet before the driver sees them. All are set by flags, before the first call.
type faults struct {
	lock     sync.Mutex
	failures map[string]*failure
	hangs    map[string]bool
	record   *os.File
}

// calls names all calls of the driver's services.
func calls() map[string]bool {
	all := map[string]bool{}
	for _, service := range []grpc.ServiceDesc{csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.Node_ServiceDesc} {
		for _, method := range service.Methods {
			all[method.MethodName] = true
		}
	}
	return all
}

func (f *faults) flags(flags *flag.FlagSet) {
	f.failures, f.hangs = map[string]*failure{}, map[string]bool{}
	for call := range calls() {
		flags.Func("fail-"+call, "code[:times] with which the call fails", func(text string) (err error) {
			f.failures[call], err = parseFailure(text)
			return err
		})
	}
	flags.Func("hang", "calls that never end by themselves, with commas between them", func(text string) error {
		for _, call := range strings.Split(text, ",") {
			if !calls()[call] {
				return fmt.Errorf("there is no call %q", call)
			}
			f.hangs[call] = true
		}
		return nil
	})
	flags.Func("record", "file to which each request is added as a line of JSON", func(file string) (err error) {
		f.record, err = os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		return err
	})
}

func parseFailure(text string) (*failure, error) {
	name, times, limited := strings.Cut(text, ":")
	f := &failure{left: math.MaxInt}
	if limited {
		n, err := strconv.Atoi(times)
		if err != nil {
			return nil, err
		}
		f.left = n
	}
	for f.code = codes.Canceled; f.code <= codes.Unauthenticated; f.code++ {
		if f.code.String() == name {
			return f, nil
		}
	}
	return nil, fmt.Errorf("there is no code %q", name)
}

func (f *faults) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call := path.Base(info.FullMethod)
	if err := f.write(ctx, call, request); err != nil {
		return nil, status.Errorf(codes.Internal, "request not recorded: %v", err)
	}
	if f.hangs[call] {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if code := f.due(call); code != codes.OK {
		return nil, status.Errorf(code, "%s fails because a test wants it to", call)
	}
	return handler(ctx, request)
}

// due counts a failure that was ordered.
func (f *faults) due(call string) codes.Code {
	f.lock.Lock()
	defer f.lock.Unlock()
	failure := f.failures[call]
	if failure == nil || failure.left == 0 {
		return codes.OK
	}
	failure.left--
	return failure.code
}

func (f *faults) write(ctx context.Context, call string, request any) error {
	if f.record == nil {
		return nil
	}
	message, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(request.(proto.Message))
	if err != nil {
		return err
	}
	line := struct {
		Call    string          `json:"call"`
		Seconds float64         `json:"seconds,omitempty"`
		Request json.RawMessage `json:"request"`
	}{Call: call, Request: message}
	if deadline, limited := ctx.Deadline(); limited {
		line.Seconds = time.Until(deadline).Seconds()
	}
	encoded, err := json.Marshal(line)
	if err != nil {
		return err
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	_, err = f.record.Write(append(encoded, '\n'))
	return err
}
