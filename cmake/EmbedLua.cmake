# Writes lua/*.lua as string constants: ${output} defines a std::string_view for each file, named
# like the file. Lines of comments are left out: each server keeps the text of a script.
#
# A line `local NAME = number` defines a constant for all files; each use of it becomes the number.
# As a variable it would cost time at each call of a script: a function looks up each variable of
# the script that it uses when it is defined, and the definitions run at each call.
function(tidegate_embed_lua directory output)
  file(GLOB scripts CONFIGURE_DEPENDS ${directory}/*.lua)
  set(definition "\nlocal ([A-Z][A-Z0-9_]*) = ([0-9]+)[^\n]*")
  set(constants "")
  foreach(script IN LISTS scripts)
    file(READ ${script} body)
    string(REGEX MATCHALL "\nlocal [A-Z][A-Z0-9_]* = [0-9]+" lines "${body}")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "${definition}" "\\1" constant "${line}")
      string(REGEX REPLACE "${definition}" "\\2" value_of_${constant} "${line}")
      if(constant IN_LIST constants)
        message(FATAL_ERROR "${script} defines ${constant} anew; expected one definition in lua/")
      endif()
      list(APPEND constants ${constant})
    endforeach()
  endforeach()

  set(text "// Made from lua/*.lua by the build.\n#pragma once\n#include <string_view>\nnamespace tidegate::redis::lua {\n")
  foreach(script IN LISTS scripts)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script})
    get_filename_component(name ${script} NAME_WE)
    file(READ ${script} body)
    string(REGEX REPLACE "\n *--[^\n]*" "" body "\n${body}")
    string(REGEX REPLACE "${definition}" "\n" body "${body}")
    foreach(constant IN LISTS constants)
      # Twice, since of two uses with one character between them the first takes it.
      foreach(time RANGE 1)
        string(REGEX REPLACE "([^A-Za-z0-9_])${constant}([^A-Za-z0-9_])"
               "\\1${value_of_${constant}}\\2" body "${body}")
      endforeach()
    endforeach()
    string(APPEND text "inline constexpr std::string_view ${name} = R\"LUA(${body})LUA\";\n")
  endforeach()
  string(APPEND text "}  // namespace tidegate::redis::lua\n")
  file(CONFIGURE OUTPUT ${output} CONTENT "${text}" @ONLY)
endfunction()
