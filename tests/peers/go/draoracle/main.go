// Answers what Kubernetes' own code says to selectors and claims: the compiler and the allocator of
// k8s.io/dynamic-resource-allocation. One question a line of standard input, one answer a line of
// standard output, both JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Question is either an expression for a device or claims for a node.
type Question struct {
	// Expression is a selector.
	Expression string `json:"expression,omitempty"`
	// Lists turns list attributes on.
	Lists bool `json:"lists,omitempty"`
	// Driver is the device's.
	Driver string `json:"driver,omitempty"`
	// Device is what the expression is asked about.
	Device *resourceapi.Device `json:"device,omitempty"`

	Node      *v1.Node                       `json:"node,omitempty"`
	Slices    []*resourceapi.ResourceSlice   `json:"slices,omitempty"`
	Classes   []*resourceapi.DeviceClass     `json:"classes,omitempty"`
	Claims    []*resourceapi.ResourceClaim   `json:"claims,omitempty"`
	Allocated []resourceapi.AllocationResult `json:"allocated,omitempty"`
}

// Answer to a question.
type Answer struct {
	// Invalid says why the expression does not compile.
	Invalid string `json:"invalid,omitempty"`
	// MaxCost is the estimate.
	MaxCost uint64 `json:"maxCost"`
	// Cost is what one evaluation took.
	Cost uint64 `json:"cost"`
	// Matches is the outcome of the expression.
	Matches *bool `json:"matches,omitempty"`
	// Error ended the evaluation or the allocation.
	Error string `json:"error,omitempty"`
	// OnlyNode says that the error concerns this node only.
	OnlyNode bool `json:"onlyNode,omitempty"`
	// Results of an allocation, one a claim; none when there is no room.
	Results []resourceapi.AllocationResult `json:"results,omitempty"`
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("class %s not found", name)
}

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	var all []*resourceapi.DeviceClass
	for _, class := range c {
		all = append(all, class)
	}
	return all, nil
}

func evaluate(q Question) (a Answer) {
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: q.Lists}).
		CompileCELExpression(q.Expression, cel.Options{})
	if compiled.Error != nil {
		a.Invalid = compiled.Error.Detail
		return a
	}
	a.MaxCost = compiled.MaxCost
	if q.Device == nil {
		return a
	}
	matches, details, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   q.Driver,
		AllowMultipleAllocations: q.Device.AllowMultipleAllocations,
		Attributes:               q.Device.Attributes,
		Capacity:                 q.Device.Capacity,
	})
	if details != nil && details.ActualCost() != nil {
		a.Cost = *details.ActualCost()
	}
	if err != nil {
		a.Error = err.Error()
		return a
	}
	a.Matches = &matches
	return a
}

func features() structured.Features {
	return structured.Features{
		AdminAccess:            true,
		PrioritizedList:        true,
		PartitionableDevices:   true,
		DeviceTaints:           true,
		ConsumableCapacity:     true,
		DeviceBindingAndStatus: true,
	}
}

func allocate(q Question) (a Answer) {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, allocation := range q.Allocated {
		for _, result := range allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	byName := classes{}
	for _, class := range q.Classes {
		byName[class.Name] = class
	}
	for i, claim := range q.Claims {
		if claim.UID == "" {
			claim.UID = types.UID(fmt.Sprintf("claim-%d", i))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, features(), state, byName, q.Slices, cel.NewCache(100, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		a.Error = err.Error()
		return a
	}
	results, err := allocator.Allocate(ctx, q.Node, q.Claims)
	if err != nil {
		a.Error, a.OnlyNode = err.Error(), errors.Is(err, structured.ErrFailedAllocationOnNode)
		return a
	}
	a.Results = results
	return a
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	out := bufio.NewWriter(os.Stdout)
	for in.Scan() {
		var question Question
		var answer Answer
		if err := json.Unmarshal(in.Bytes(), &question); err != nil {
			answer.Error = "question: " + err.Error()
		} else if question.Node != nil {
			answer = allocate(question)
		} else {
			answer = evaluate(question)
		}
		line, err := json.Marshal(answer)
		if err != nil {
			panic(err)
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			panic(err)
		}
		if err := out.Flush(); err != nil {
			panic(err)
		}
	}
	if err := in.Err(); err != nil {
		panic(err)
	}
}
